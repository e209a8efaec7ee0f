"""Whether the engine makes progress: detects stalls (requests wait, nothing runs) and iterations that keep failing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.core.clock import Clock
from service.engine.engine import Engine

logger = logging.getLogger(__name__)

MAX_FAILED_IN_A_ROW = 3
"""After so many failed iterations in a row, a probe tells whether the executor is broken or the requests are at fault:
one client that keeps sending a bad request must not end the service for the others."""

PROBE_EVERY_S = 1.0
"""While probes fail or find no room. Also without requests: a load balancer sends none to an unhealthy server."""

STALLED_AFTER_S = 10.0

LOOK_WHILE_STALLED_S = 0.05


class EngineWatch:
    """Engine thread; other threads may read `stalled_since_s` and `failing`.

    stalled_since_s: since when requests have been waiting while no iteration could run; normally None, since the next
    decision admits or refuses a request that waits while nothing runs. failing: why every request would fail, as a
    probe has shown; None as long as no probe has.

    wait(seconds): sleeps during a stall, until something happens. stalled_after_s: a stall is logged after so long.
    """

    def __init__(self, engine: Engine, clock: Clock, wait: Callable[[float], object], stalled_after_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._wait = wait
        self._stalled_after_s = stalled_after_s
        self.stalled_since_s: float | None = None
        self.failing: str | None = None
        self._stall_told = False
        self._probe_due_s = clock.now_s()

    @property
    def probe_in_s(self) -> float | None:
        """The longest time to wait for a command before the next probe; None: no probe is due."""
        return None if self.failing is None else PROBE_EVERY_S

    def note_stall(self, *, goes_on: bool) -> None:
        """Call after a step that stalled, or that follows one. goes_on: the step had something to do."""
        if goes_on or not self._engine.has_work:
            self.stalled_since_s, self._stall_told = None, False
            return
        now_s = self._clock.now_s()
        if self.stalled_since_s is None:
            self.stalled_since_s = now_s
        if now_s - self.stalled_since_s >= self._stalled_after_s and not self._stall_told:
            reason = self._engine.scheduler.group_start.describe_wait()
            logger.error("no iteration for %.0f s: %s", now_s - self.stalled_since_s, reason)
            self._stall_told = True
        self._wait(LOOK_WHILE_STALLED_S)

    def note_failures(self) -> bool:
        """After MAX_FAILED_IN_A_ROW failures, probe whether new requests would fail, too, at most every PROBE_EVERY_S.
        Returns whether a probe was made. Raises RuntimeError if the executor raises on the probe."""
        num_failed, now_s = self._engine.failed.num_in_a_row, self._clock.now_s()
        if num_failed < MAX_FAILED_IN_A_ROW:
            self._note_recovery("a request has got a token")
            return False
        if now_s < self._probe_due_s:
            return False
        try:
            answers = self._engine.probe()
        except Exception as fault:
            raise RuntimeError(f"{num_failed} iterations in a row have failed, and so has a probe") from fault
        if not answers:
            self._probe_due_s = self._clock.now_s() + PROBE_EVERY_S
        if answers:
            logger.warning("%d iterations in a row failed, but a probe request got a token", num_failed)
            self._note_recovery("a probe has got a token")
        elif answers is False and self.failing is None:
            self.failing = f"{num_failed} iterations in a row failed, and so did a probe request"
            logger.critical("every request fails: %s", self.failing)
        return True

    def _note_recovery(self, why: str) -> None:
        if self.failing is not None:
            logger.warning("requests are answered again: %s", why)
            self.failing = None
