"""Which batch may run its next line: batches take turns, as far as there are free seats."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_LOOK_EVERY_S = 0.02


class Seat:
    """`give_back` is idempotent."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._is_taken = True

    def give_back(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._give_back()


class Seats:
    """Event loop. Each batch waits for one seat at a time, so batches take turns.

    most(num_taken): how many seats may be taken now; polled while a batch waits.
    """

    def __init__(self, most: Callable[[int], int]) -> None:
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._looking: asyncio.Task[None] | None = None
        self.num_taken = 0

    async def take(self) -> Seat:
        seat: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(seat)
        self._hand_out()
        try:
            await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled():
                self._give_back()
            raise
        return Seat(self._give_back)

    def _give_back(self) -> None:
        self.num_taken -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif self.num_taken < self._most(self.num_taken):
                self.num_taken += 1
                self._waiting.popleft().set_result(None)
            else:
                break
        if self._waiting and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Poll, since `most` may change at any time."""
        while self._waiting:
            await asyncio.sleep(_LOOK_EVERY_S)
            self._hand_out()
