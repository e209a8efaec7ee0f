"""When to launch the next iteration behind the one that runs: just before the device would run dry, not sooner.

Requests that arrive until then are in the next iteration; launched at once, it would have shut them out for its whole
length. Two guesses are needed, and both are the worst seen of late: how early the device ends, relative to the
prediction, and how long the launch takes. If a guess is still too bold, the device idles for as long as it was off, and
the next guesses are more careful.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN_S = 2e-4
"""Between the end of the launch and the end of the iteration, by both guesses."""

LEAST_SPARE_S = 3e-4
"""Less is not worth a sleep."""

FIRST_SHARE, FIRST_LEAD_S = 0.8, 2e-3
"""The two guesses before anything was measured."""

LATE = 0.95
"""Factor for a share that was too large by an unknown amount: the end was missed."""

FORGET = 1 / 64
"""By how much of the difference a guess moves back towards each measurement that is less extreme."""


class LaunchTiming:
    """Engine thread. Times in seconds on the engine's clock.

    For each iteration: `runs`; `spare_s` as often as wanted, and `put_off` if the launch behind it is; `launches` when
    that one begins and `launched` when it is done; `ended`, or `lost`. Without `runs` the others do nothing.
    """

    def __init__(self) -> None:
        self._shares = {False: FIRST_SHARE, True: FIRST_SHARE}  # of the predicted seconds, by whether prompts are in it
        self._lead_s = FIRST_LEAD_S
        self._running: _Running | None = None

    @property
    def is_timing(self) -> bool:
        """Whether `runs` was told of the iteration that runs."""
        return self._running is not None

    def runs(self, started_s: float, predicted_s: float, now_s: float, *, has_prompts: bool) -> None:
        """An iteration runs, and none behind it."""
        due_s = started_s + self._shares[has_prompts] * predicted_s - self._lead_s - MARGIN_S
        could_wait = due_s >= now_s + LEAST_SPARE_S
        self._running = _Running(predicted_s, has_prompts, due_s if could_wait else now_s, could_wait)

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

    def launched(self, now_s: float) -> None:
        """The next launch is done; it has taken from the time at which it was due until now."""
        if self._running is not None:
            took_s = now_s - self._running.due_s
            self._lead_s = max(took_s, self._lead_s + (took_s - self._lead_s) * FORGET)

    def ended(self, seconds: float, *, is_exact: bool) -> float:
        """The iteration took `seconds`; at most that if not exact, since it ended before the next launch was done.

        Returns for how long that launch was put off.
        """
        running, self._running = self._running, None
        if running is None:
            return 0.0
        share, seen = self._shares[running.has_prompts], seconds / running.predicted_s
        if is_exact:
            share = min(seen, share + (seen - share) * FORGET)
        elif running.could_wait:
            share = min(seen, share * LATE)
        self._shares[running.has_prompts] = share
        return running.put_off_s

    def lost(self) -> None:
        """The iteration failed: how long it took says nothing."""
        self._running = None


@dataclass(slots=True)
class _Running:
    """The iteration that runs. due_s: when the launch behind it should begin; could_wait: later than at once."""

    predicted_s: float
    has_prompts: bool
    due_s: float
    could_wait: bool
    put_off_since_s: float | None = None
    put_off_s: float = 0.0
