"""When the engine does work that can wait (`IdleWork`): in a pause, beside a training, or if iterations miss it."""

from __future__ import annotations

from collections.abc import Callable

from service.core.clock import Clock
from service.engine.engine import Engine

IDLE_BEFORE_WORK_S = 0.01
"""Without a command for so long, the engine does a piece: not in the pause between a client's calls."""

CATCH_UP_EVERY_S = 2.0
"""Without any pause for so long, what iterations miss is done between two of them: it holds everybody up for about a
tenth of a second, and makes their steps up to twice as short from then on."""

URGENT_EVERY_S = 0.25
"""The same while most iterations do without: the first that ask to be deterministic have no CUDA graph at all."""


class IdleTurns:
    """Engine thread only.

    must_give_up: whether a command has come, for which a piece is given up.

    has_more: whether there is any work, as far as is known. catch_up_due_s: when it is time for `catch_up`.
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
        """The engine had nothing to do until now."""
        self.catch_up_due_s = self._clock.now_s() + CATCH_UP_EVERY_S

    def use_pause(self) -> bool:
        """There is nothing to do: do a piece. Whether there is more."""
        self._engine.finish_launched()
        assert not self._engine.has_requests
        self.has_more = self._engine.idle_work.do_some(self._must_give_up)
        return self.has_more

    def use_training(self, *, has_commands: bool) -> None:
        """A training, for which there is always something to do, waits for a piece, once nobody else has come for a
        while."""
        now_s = self._clock.now_s()
        if self._engine.has_requests or has_commands:
            self._had_requests_s = now_s
        elif now_s - self._had_requests_s >= IDLE_BEFORE_WORK_S:
            self.use_pause()

    def catch_up(self, before_work: Callable[[], None]) -> None:
        """There may never be a pause: do a piece that iterations miss, if there is one, once those that run are
        applied. before_work: called in between."""
        work, pause_s = self._engine.idle_work, CATCH_UP_EVERY_S
        if work.is_missed():
            pause_s = URGENT_EVERY_S if work.is_urgent() else CATCH_UP_EVERY_S
            self._engine.finish_launched()
            before_work()
            work.do_some()
        self.catch_up_due_s = self._clock.now_s() + pause_s
