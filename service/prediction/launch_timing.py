"""When to launch the next iteration: just before the device runs out of work, not sooner.

Requests that arrive before the launch are in the next iteration; those that arrive after it wait for that iteration's
whole length. So a launch is delayed until shortly before the predicted end of the running iteration. Two guesses are
learned for that: the share of its predicted time that an iteration really takes (a moving average), and the lead by
which the launch must precede the end. The lead covers the launch itself and whatever varies. It shrinks a little after
each launch in time and grows much more after a late one, so it settles where LATE_SHARE of the launches are late. One
slow launch among hundreds moves it by a tenth only. A lead long enough for the slowest recent launch made every request
wait 1 ms longer, to save a hundredth of a millisecond of device time (loadtest/log/serving.md).

A launch that starts requests takes three times as long as one that does not, so there are two leads. The short one
applies while no request has arrived. If one arrives when less than the long lead is left, it is launched at once: the
device idles a little, but the request need not wait for a whole iteration. Nothing is learned from how late that was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

LEAST_SPARE_S = 3e-4
"""A shorter delay is not worth a sleep."""

FIRST_SHARE, FIRST_LEAD_S = 0.8, 2e-3
"""The guesses before anything was measured."""

LATE_SHARE = 0.05
"""Target share of delayed launches that are late: the device has run out of work, or is about to."""

STEP = 0.1
"""A late launch makes the lead longer by this share of it, one in time shorter by STEP * LATE_SHARE."""

FORGET = 1 / 16
"""Weight of each new measurement in the moving average of the share."""


IterationKind = Literal["decodes", "prompts", "training"]
KINDS: tuple[IterationKind, ...] = get_args(IterationKind)


class LaunchTiming:
    """Engine thread. Times in seconds on the engine's clock.

    Call per iteration: `runs`; `spare_s` as often as wanted; `launches` when the next launch begins and `launched` when
    it is done; then `ended` or `lost`. Without `runs` the others do nothing. has_arrivals: whether requests have
    arrived that the launch would start. Each kind of iteration has its own guesses: those with prompts take longer and
    vary more.
    """

    def __init__(self) -> None:
        self._guesses: dict[IterationKind, _Guesses] = {kind: _Guesses() for kind in KINDS}
        self._running: _Running | None = None

    @property
    def is_timing(self) -> bool:
        """Whether `runs` was called for the running iteration."""
        return self._running is not None

    def runs(self, started_s: float, predicted_s: float, kind: IterationKind) -> None:
        """An iteration runs, and nothing is launched after it yet."""
        guesses = self._guesses[kind]
        self._running = _Running(predicted_s, guesses, started_s + guesses.share * predicted_s)

    def spare_s(self, now_s: float, *, has_arrivals: bool) -> float:
        """How long the next launch may be delayed unless a request arrives; 0: launch now."""
        return 0.0 if self._running is None else self._running.spare_s(now_s, has_arrivals)

    def launches(self, now_s: float, *, has_arrivals: bool) -> None:
        """The next launch begins."""
        if self._running is not None:
            self._running.begun_s, self._running.has_arrivals = now_s, has_arrivals

    def launched(self) -> None:
        """The next launch is done."""
        if self._running is not None:
            self._running.is_followed = True

    def ended(self, seconds: float, *, is_exact: bool) -> float:
        """The iteration took `seconds`. Not exact: at most that, since it ended before the next launch was done.

        Returns by how much that launch was delayed.
        """
        running, self._running = self._running, None
        if running is None:
            return 0.0
        guesses, seen = running.guesses, seconds / running.predicted_s
        has_arrivals = running.has_arrivals
        if is_exact:
            guesses.share += (seen - guesses.share) * FORGET
            if running.is_followed and running.begun_s >= running.due_s(has_arrivals):
                guesses.leads_s[has_arrivals] *= 1 - STEP * LATE_SHARE
        elif has_arrivals in running.delayed:
            guesses.share = min(seen, guesses.share)
            guesses.leads_s[has_arrivals] *= 1 + STEP * (1 - LATE_SHARE)
        return running.delayed_s

    def lost(self) -> None:
        """The iteration failed: learn nothing from its duration."""
        self._running = None


@dataclass(slots=True)
class _Guesses:
    """share: actual / predicted seconds. leads_s: seconds before the guessed end, without and with arrivals."""

    share: float = FIRST_SHARE
    leads_s: dict[bool, float] = field(default_factory=lambda: dict.fromkeys((False, True), FIRST_LEAD_S))


@dataclass(slots=True)
class _Running:
    """The running iteration. end_s: its guessed end. About the next launch:

    delayed: contains True if it was delayed with arrivals, False if without; both, if requests arrived meanwhile.
    delayed_since_s: since when. begun_s, has_arrivals: when it began, and whether with arrivals.
    is_followed: it is done.
    """

    predicted_s: float
    guesses: _Guesses
    end_s: float
    delayed: set[bool] = field(default_factory=set)
    delayed_since_s: float | None = None
    begun_s: float = math.inf
    has_arrivals: bool = False
    is_followed: bool = False

    def due_s(self, has_arrivals: bool) -> float:
        """When the next launch should begin."""
        return self.end_s - self.guesses.leads_s[has_arrivals]

    def spare_s(self, now_s: float, has_arrivals: bool) -> float:
        """See LaunchTiming.spare_s. The first answer above 0 starts the delay."""
        spare_s = self.due_s(has_arrivals) - now_s
        if spare_s < LEAST_SPARE_S and has_arrivals not in self.delayed:
            return 0.0
        self.delayed.add(has_arrivals)
        if self.delayed_since_s is None:
            self.delayed_since_s = now_s
        return max(0.0, spare_s)

    @property
    def delayed_s(self) -> float:
        return 0.0 if self.delayed_since_s is None else self.begun_s - self.delayed_since_s
