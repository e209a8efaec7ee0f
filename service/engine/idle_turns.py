"""When the engine does idle work (`IdleWork`): in a pause, beside a training, or when iterations would gain by it."""

from __future__ import annotations

from collections.abc import Callable

from service.core.clock import Clock
from service.engine.engine import Engine

IDLE_BEFORE_WORK_S = 0.01
"""A pause begins after so long without a command: long enough not to count the gap between two calls of a client."""

CATCH_UP_EVERY_S = 2.0
"""After so long without a pause, work that iterations would gain by is done between two of them. It delays everybody by
about a tenth of a second once, and makes their steps up to twice as fast from then on."""

URGENT_EVERY_S = 0.25
"""The same, if `IdleWork.is_urgent`: the first deterministic requests, for example, have no CUDA graph at all."""


class IdleTurns:
    """Engine thread only.

    must_give_up: whether a command has come; a piece of work is then dropped.

    has_more: whether any work is left, as far as is known. catch_up_due_s: when `catch_up` should be called next.
    """

    def __init__(self, engine: Engine, clock: Clock, must_give_up: Callable[[], bool]) -> None:
        self._engine = engine
        self._clock = clock
        self._must_give_up = must_give_up
        self._had_requests_s = clock.now_s()
        self.has_more = True
        self.catch_up_due_s = 0.0
        self.note_pause()

    def note_pause(self) -> None:
        """The engine had nothing to do until now: the time to the next `catch_up` starts anew."""
        self.catch_up_due_s = self._clock.now_s() + CATCH_UP_EVERY_S

    def use_pause(self) -> bool:
        """The engine has nothing to do: do a piece of work. Returns whether more is left."""
        self._engine.finish_launched()
        assert not self._engine.has_requests
        self.has_more = self._engine.idle_work.do_some(self._must_give_up)
        return self.has_more

    def use_training(self, *, has_commands: bool) -> None:
        """With a training there is always something to do, so there are no pauses: do a piece of work once no request
        or command has come for IDLE_BEFORE_WORK_S."""
        now_s = self._clock.now_s()
        if self._engine.has_requests or has_commands:
            self._had_requests_s = now_s
        elif now_s - self._had_requests_s >= IDLE_BEFORE_WORK_S:
            self.use_pause()

    def catch_up(self, before_work: Callable[[], None]) -> None:
        """Do a piece of work between two iterations, if they would gain by it, since a pause may never come. Iterations
        in flight are applied first, then before_work is called."""
        work, pause_s = self._engine.idle_work, CATCH_UP_EVERY_S
        if work.is_missed():
            pause_s = URGENT_EVERY_S if work.is_urgent() else CATCH_UP_EVERY_S
            self._engine.finish_launched()
            before_work()
            work.do_some()
        self.catch_up_due_s = self._clock.now_s() + pause_s
