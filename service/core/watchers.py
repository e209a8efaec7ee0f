"""Lets tasks wait for news of a named thing: a job, a batch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Watchers:
    """Event-loop thread only."""

    def __init__(self) -> None:
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set at every news of `name`; the waiting task clears it."""
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
