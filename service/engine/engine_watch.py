"""Whether the engine gets on: requests that wait while nothing runs, and iterations that fail one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.core.clock import Clock
from service.engine.engine import Engine

logger = logging.getLogger(__name__)

MAX_FAILED_IN_A_ROW = 3
"""After this many failed iterations in a row the engine asks itself whether it is the executor that has failed, or what
clients have asked for: one client's bad request, sent again and again, must not end the service for others."""

PROBE_EVERY_S = 1.0
"""While probes fail, or find no room: also without requests, since a balancer sends none to a server that fails."""

STALLED_AFTER_S = 10.0

LOOK_WHILE_STALLED_S = 0.05


class EngineWatch:
    """Engine thread; other threads read the two facts.

    stalled_since_s: since when there are requests and no iteration that could run; None ordinarily, for whoever waits
    while nothing runs is admitted or refused by the next decision. failing: why every request would fail, found out by
    a probe; None if it is not known that any would.

    wait(seconds): passes the time in a stall, until something comes. stalled_after_s: after so long it is logged.
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
        """How long to wait for a command at most; None: as long as it takes."""
        return None if self.failing is None else PROBE_EVERY_S

    def note_stall(self, *, goes_on: bool) -> None:
        """goes_on: whether the step had something to do."""
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
        """Several iterations have failed: find out whether the next request would, too. Raises if the executor does.
        False if it was not tried, and nothing is new."""
        num_failed, now_s = self._engine.num_failed_in_a_row, self._clock.now_s()
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
            logger.warning("%d iterations in a row gave their requests nothing, but a probe got a token", num_failed)
            self._note_recovery("a probe has got a token")
        elif answers is False and self.failing is None:
            self.failing = f"{num_failed} iterations in a row gave no request a token, nor did a probe"
            logger.critical("every request fails: %s", self.failing)
        return True

    def _note_recovery(self, why: str) -> None:
        if self.failing is not None:
            logger.warning("requests are answered again: %s", why)
            self.failing = None
