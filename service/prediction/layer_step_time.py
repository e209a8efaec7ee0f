"""How long the layer steps of a fine-tuning iteration take, learnt from pieces of it."""

from __future__ import annotations

RATE = 1 / 8
"""By what power of the ratio a step's usual seconds follow what was measured."""

KEEP = 0.7
"""Of the weight of a piece for the present iteration's ratio, with each piece behind it."""

PRIOR = 0.5
"""Weight of the usual seconds beside a piece's own."""


class LayerStepTime:
    """Each of an iteration's steps has its usual seconds: forward and backward, loss and optimizer differ. Of a piece
    only the sum is measured, so its steps are corrected by one factor; pieces have other borders each time, and so tell
    the steps apart. How much longer than usual an iteration takes, which has more tokens than others, its own first
    pieces tell. Engine thread only."""

    def __init__(self, num_steps: int) -> None:
        self._usual_s = [0.0] * num_steps
        self._is_seen = [False] * num_steps
        self._ratio = 1.0  # of the iteration under way to a usual one
        self._measured_s = self._expected_s = 0.0  # its last pieces

    def predicted_s(self, start: int, num_steps: int) -> float | None:
        """Of steps start, start + 1, ... of an iteration, of the one under way if start > 0; None before any step was
        measured."""
        if not any(self._is_seen):
            return None
        return sum(self._usual_s[start : start + num_steps]) * self._ratio_at(start)

    def num_within(self, seconds: float, start: int, most: int) -> int:
        """How many steps from `start` on take no longer together; 0 before any was measured."""
        if not any(self._is_seen):
            return 0
        num_steps, ratio = 0, self._ratio_at(start)
        for step_s in self._usual_s[start : start + most]:
            seconds -= step_s * ratio
            if seconds < 0.0:
                break
            num_steps += 1
        return num_steps

    def observe(self, start: int, num_steps: int, seconds: float) -> None:
        """Steps start, start + 1, ... took so long together."""
        if not any(self._is_seen):
            self._usual_s = [seconds / num_steps] * len(self._usual_s)
        steps = range(start, min(start + num_steps, len(self._usual_s)))
        usual_s = max(sum(self._usual_s[step] for step in steps), 1e-9)
        if start == 0:
            self._ratio, self._measured_s, self._expected_s = 1.0, 0.0, 0.0
        if all(self._is_seen[step] for step in steps):
            self._measured_s = KEEP * self._measured_s + seconds
            self._expected_s = KEEP * self._expected_s + usual_s
            self._ratio = (self._measured_s + PRIOR * usual_s) / (self._expected_s + PRIOR * usual_s)
            factor = (seconds / usual_s) ** RATE
        else:
            factor = seconds / self._ratio / usual_s
        for step in steps:
            self._usual_s[step] = max(self._usual_s[step] * factor, 1e-9)
            self._is_seen[step] = True

    def _ratio_at(self, start: int) -> float:
        return self._ratio if start else 1.0
