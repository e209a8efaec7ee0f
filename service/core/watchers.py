"""Who waits for news of something that has a name: a job, a batch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Watchers:
    """Event loop."""

    def __init__(self) -> None:
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """Set whenever there is news of it; whoever waits for that clears it."""
        changed = asyncio.Event()
        self._events[name].add(changed)
        try:
            yield changed
        finally:
            self._events[name].discard(changed)
            if not self._events[name]:
                del self._events[name]

    def tell(self, name: str) -> None:
        for changed in self._events.get(name, ()):
            changed.set()

    def tell_all(self) -> None:
        for name in self._events:
            self.tell(name)
