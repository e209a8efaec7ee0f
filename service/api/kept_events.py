"""The events of a background response, kept so that clients can follow them, more than once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_END = b"\n\n"
_OVERHEAD_BYTES = 64
"""Memory of an event besides its bytes."""


class KeptEvents:
    """Events in their order; an event's index is its sequence number. Event-loop thread.

    has_ended: no more will come. num_followers: readers that are told of new events.
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
        """frames: whole events, each followed by a blank line. Returns the bytes that they take here."""
        events = frames.split(_END)[:-1]
        self._events += events
        self._tell()
        return len(frames) + _OVERHEAD_BYTES * len(events)

    def end(self) -> None:
        self.has_ended = True
        self._tell()

    def read(self, first: int, most: int) -> Sequence[bytes]:
        """At most `most` events from `first` on, without the blank lines after them."""
        return self._events[first : first + most]

    def tell_to(self, reader: Callable[[], None]) -> Callable[[], None]:
        """Has `reader` called whenever there may be more events. Each follower needs its own `reader`, which must
        neither raise nor block. Returns the function that ends it."""
        self._readers.add(reader)
        return lambda: self._readers.discard(reader)

    def _tell(self) -> None:
        for reader in list(self._readers):
            reader()
