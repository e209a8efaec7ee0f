"""When to launch the next iteration behind the one that runs: just before the device would run dry, not sooner.

Requests that arrive until then are in the next iteration; launched at once, it would have shut them out for its whole
length. Two guesses are needed: what share of its prediction the iteration takes, a mean, and the lead, by how much
before that end the launch must begin. The lead covers the launch and whatever varies. It shrinks a little after each
launch that was in time, grows much more after one that came too late, and so settles where LATE_SHARE of them do. One
slow launch among hundreds moves it by a tenth only; a lead that outlasts the slowest of late made every request wait
1 ms longer than this one does, for a hundredth of a millisecond of the device's time (loadtest/LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SPARE_S = 3e-4
"""Less is not worth a sleep."""

FIRST_SHARE, FIRST_LEAD_S = 0.8, 2e-3
"""The two guesses before anything was measured."""

LATE_SHARE = 0.05
"""Of the launches that are put off, how many may come when the device has nothing to do any more, or is about to."""

STEP = 0.1
"""By how much of it a lead changes after a launch that came too late; after one in time STEP * LATE_SHARE."""

FORGET = 1 / 16
"""By how much of the difference the share moves towards each measurement."""


class LaunchTiming:
    """Engine thread. Times in seconds on the engine's clock.

    For each iteration: `runs`; `spare_s` as often as wanted, and `put_off` if the launch behind it is; `launches` when
    that one begins and `launched` when it is done; `ended`, or `lost`. Without `runs` the others do nothing. Iterations
    with prompts have guesses of their own: they take longer, and vary more.
    """

    def __init__(self) -> None:
        self._guesses = {has_prompts: _Guesses() for has_prompts in (False, True)}
        self._running: _Running | None = None

    @property
    def is_timing(self) -> bool:
        """Whether `runs` was told of the iteration that runs."""
        return self._running is not None

    def runs(self, started_s: float, predicted_s: float, now_s: float, *, has_prompts: bool) -> None:
        """An iteration runs, and none behind it."""
        guesses = self._guesses[has_prompts]
        due_s = started_s + guesses.share * predicted_s - guesses.lead_s
        could_wait = due_s >= now_s + LEAST_SPARE_S
        self._running = _Running(predicted_s, guesses, due_s if could_wait else now_s, could_wait, due_s <= now_s)

    def spare_s(self, now_s: float) -> float:
        """For how long the launch behind it may be put off; 0 if it should be done now."""
        return 0.0 if self._running is None else max(0.0, self._running.due_s - now_s)

    def outrun(self, now_s: float) -> None:
        """The iteration has already ended: nothing is spared."""
        if self._running is not None:
            self._running.due_s = now_s

    def put_off(self, now_s: float) -> None:
        """The next launch is put off, from the first such call until `launches`."""
        if self._running is not None and self._running.put_off_since_s is None:
            self._running.put_off_since_s = now_s

    def launches(self, now_s: float) -> None:
        """The next launch begins."""
        if self._running is not None and self._running.put_off_since_s is not None:
            self._running.put_off_s = now_s - self._running.put_off_since_s

    def launched(self) -> None:
        """The next launch is done."""
        if self._running is not None:
            self._running.is_followed = True

    def ended(self, seconds: float, *, is_exact: bool) -> float:
        """The iteration took `seconds`; at most that if not exact, since it ended before the next launch was done.

        Returns for how long that launch was put off.
        """
        running, self._running = self._running, None
        if running is None:
            return 0.0
        guesses, seen = running.guesses, seconds / running.predicted_s
        if is_exact:
            guesses.share += (seen - guesses.share) * FORGET
            if running.is_followed and (running.could_wait or running.is_overdue):
                guesses.lead_s *= 1 - STEP * LATE_SHARE
        elif running.could_wait:
            guesses.share = min(seen, guesses.share)
            guesses.lead_s *= 1 + STEP * (1 - LATE_SHARE)
        return running.put_off_s

    def lost(self) -> None:
        """The iteration failed: how long it took says nothing."""
        self._running = None


@dataclass(slots=True)
class _Guesses:
    """share: of the predicted seconds. lead_s: before the end by that share."""

    share: float = FIRST_SHARE
    lead_s: float = FIRST_LEAD_S


@dataclass(slots=True)
class _Running:
    """The iteration that runs. due_s: when the launch behind it should begin; could_wait: later than at once;
    is_overdue: it should have begun before. is_followed: it has been launched."""

    predicted_s: float
    guesses: _Guesses
    due_s: float
    could_wait: bool
    is_overdue: bool
    is_followed: bool = False
    put_off_since_s: float | None = None
    put_off_s: float = 0.0
