"""When to launch the next iteration behind the one that runs: just before the device would run dry, not sooner.

Requests that arrive until then are in the next iteration; launched at once, it would have shut them out for its whole
length. Two guesses are needed, and both are the worst seen of late: how early the device ends, relative to the
prediction, and how long the launch takes. If a guess is still too bold, the device idles for as long as it was off, and
the next guesses are more careful.
"""

from __future__ import annotations

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

    For each iteration: `runs`, `spare_s` as often as wanted, `launched` once there is another behind it, `ended`.
    """

    def __init__(self) -> None:
        self._shares = {False: FIRST_SHARE, True: FIRST_SHARE}  # of the predicted seconds, by whether prompts are in it
        self._lead_s = FIRST_LEAD_S
        self._predicted_s = 0.0
        self._has_prompts = False
        self._due_s = 0.0
        self._is_put_off = False

    def runs(self, started_s: float, predicted_s: float, now_s: float, *, has_prompts: bool) -> None:
        """An iteration runs, and none behind it."""
        self._predicted_s, self._has_prompts = predicted_s, has_prompts
        due_s = started_s + self._shares[has_prompts] * predicted_s - self._lead_s - MARGIN_S
        self._is_put_off = due_s >= now_s + LEAST_SPARE_S
        self._due_s = due_s if self._is_put_off else now_s

    def spare_s(self, now_s: float) -> float:
        """For how long the launch behind it may be put off; 0 if it should be done now."""
        return max(0.0, self._due_s - now_s)

    def outrun(self, now_s: float) -> None:
        """The iteration has already ended: nothing is spared."""
        self._due_s = now_s

    def launched(self, now_s: float) -> None:
        """The next launch is done; it has taken from the time at which it was due until now."""
        took_s = now_s - self._due_s
        self._lead_s = max(took_s, self._lead_s + (took_s - self._lead_s) * FORGET)

    def ended(self, seconds: float, *, is_exact: bool) -> None:
        """The iteration took `seconds`; at most that if not exact, since it ended before the next launch was done."""
        share, seen = self._shares[self._has_prompts], seconds / self._predicted_s
        if is_exact:
            share = min(seen, share + (seen - share) * FORGET)
        elif self._is_put_off:
            share = min(seen, share * LATE)
        self._shares[self._has_prompts] = share
