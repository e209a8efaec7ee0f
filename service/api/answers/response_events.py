"""The events of a response's stream: framing and numbering."""

from __future__ import annotations

import orjson


class ResponseEvents:
    """Numbers the events of one stream, from 0."""

    def __init__(self) -> None:
        self._next = 0

    def frame(self, kind: str, **fields: object) -> bytes:
        """One event. fields: its own fields, as orjson takes them."""
        event = {"type": kind, "sequence_number": self._next, **fields}
        self._next += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))
