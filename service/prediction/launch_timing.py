"""When to launch the next iteration behind the one that runs: just before the device would run dry, not sooner.

Requests that arrive until then are in the next iteration; launched at once, it would have shut them out for its whole
length. Guesses are needed for that: what share of its prediction the iteration takes, a mean, and the lead, by how much
before that end the launch must begin. The lead covers the launch and whatever varies. It shrinks a little after each
launch that was in time, grows much more after one that came too late, and so settles where LATE_SHARE of them do. One
slow launch among hundreds moves it by a tenth only; a lead that outlasts the slowest of late made every request wait
1 ms longer than this one does, for a hundredth of a millisecond of the device's time (loadtest/log/serving.md).

A launch that starts requests takes three times as long as one that does not, so each has a lead of its own. The short
one holds while nobody has come. Who comes when less than the long one is left is launched at once: the device waits a
little for that, but the request would have waited for a whole iteration. How late it was says nothing of the lead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

LEAST_SPARE_S = 3e-4
"""Less is not worth a sleep."""

FIRST_SHARE, FIRST_LEAD_S = 0.8, 2e-3
"""The two guesses before anything was measured."""

LATE_SHARE = 0.05
"""Of the launches that are delayed, how many may come when the device has nothing to do any more, or is about to."""

STEP = 0.1
"""By how much of it a lead changes after a launch that came too late; after one in time STEP * LATE_SHARE."""

FORGET = 1 / 16
"""By how much of the difference the share moves towards each measurement."""


IterationKind = Literal["decodes", "prompts", "training"]
KINDS: tuple[IterationKind, ...] = get_args(IterationKind)


class LaunchTiming:
    """Engine thread. Times in seconds on the engine's clock.

    For each iteration: `runs`; `spare_s` as often as wanted; `launches` when the launch behind it begins and `launched`
    when that one is done; `ended`, or `lost`. Without `runs` the others do nothing. has_arrivals: whether requests have
    come that the launch would start. Each kind of iteration has guesses of its own: those with prompts take longer and
    vary more.
    """

    def __init__(self) -> None:
        self._guesses: dict[IterationKind, _Guesses] = {kind: _Guesses() for kind in KINDS}
        self._running: _Running | None = None

    @property
    def is_timing(self) -> bool:
        """Whether `runs` was told of the iteration that runs."""
        return self._running is not None

    def runs(self, started_s: float, predicted_s: float, kind: IterationKind) -> None:
        """An iteration runs, and none behind it."""
        guesses = self._guesses[kind]
        self._running = _Running(predicted_s, guesses, started_s + guesses.share * predicted_s)

    def spare_s(self, now_s: float, *, has_arrivals: bool) -> float:
        """For how long the launch behind it may be delayed unless somebody comes; 0 if it should be done now."""
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
        """The iteration took `seconds`; at most that if not exact, since it ended before the next launch was done.

        Returns for how long that launch was delayed.
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
        """The iteration failed: how long it took says nothing."""
        self._running = None


@dataclass(slots=True)
class _Guesses:
    """share: of the predicted seconds. leads_s: before the end by that share, without arrivals and with."""

    share: float = FIRST_SHARE
    leads_s: dict[bool, float] = field(default_factory=lambda: dict.fromkeys((False, True), FIRST_LEAD_S))


@dataclass(slots=True)
class _Running:
    """The iteration that runs. end_s: when it ends, by the guess. Of the launch behind it:

    delayed: holds True if it was delayed with arrivals, False if without; both, if they came meanwhile.
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
        """When the launch should begin."""
        return self.end_s - self.guesses.leads_s[has_arrivals]

    def spare_s(self, now_s: float, has_arrivals: bool) -> float:
        """From the first answer above 0 the launch is delayed."""
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
