"""The events of a response that is made in the background: kept, so that they can be followed, and followed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_END = b"\n\n"
_OVERHEAD_BYTES = 64
"""Of an event, besides its own."""


class KeptEvents:
    """In their order; the place of an event is its sequence number. Event-loop thread.

    has_ended: no more will come. num_followers: who is told of more.
    """

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._readers: set[Callable[[], None]] = set()
        self.has_ended = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def num_followers(self) -> int:
        return len(self._readers)

    def add(self, frames: bytes) -> int:
        """frames: whole events, each with a blank line behind it. Returns the bytes that they take here."""
        events = frames.split(_END)[:-1]
        self._events += events
        self._tell()
        return len(frames) + _OVERHEAD_BYTES * len(events)

    def end(self) -> None:
        self.has_ended = True
        self._tell()

    def read(self, first: int, most: int) -> Sequence[bytes]:
        """The events from `first` on that there are, `most` of them, without the blank lines behind them."""
        return self._events[first : first + most]

    def tell_to(self, reader: Callable[[], None]) -> Callable[[], None]:
        """`reader`, which nobody else has, is called whenever there may be more; it neither raises nor waits. Returns
        what ends that."""
        self._readers.add(reader)
        return lambda: self._readers.discard(reader)

    def _tell(self) -> None:
        for reader in list(self._readers):
            reader()
