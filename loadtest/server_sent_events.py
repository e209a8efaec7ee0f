"""Parses server-sent events: only their data, since OpenAI's streams use nothing else."""


class EventParser:
    """Feed it body bytes as they come; it returns the data of events completed by them."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of each completed event, in order; comments and events without data are left out."""
        if self._buffer:
            data = self._buffer + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        parts = data.split(b"\n\n")
        self._buffer = parts.pop()
        return [event for part in parts if (event := _event_data(part)) is not None]


def _event_data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:] for line in event.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
