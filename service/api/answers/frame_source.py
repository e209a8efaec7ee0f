"""What a stream's response sends (sse.py): the frames of a generation, or those of one that is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class FrameSource(Protocol):
    """Event-loop thread; nothing here waits.

    is_done: everything is taken.
    """

    is_done: bool

    def read_by(self, reader: Callable[[], None]) -> None:
        """Has `reader` called whenever there may be something to `take`. `reader` must not raise."""
        ...

    def take(self) -> bytes:
        """All that is ready to be sent; may be empty. Does not raise."""
        ...

    def close(self, reason: str) -> None:
        """Nothing is taken after this. reason: why, if not everything was taken."""
        ...
