"""How long the layer steps of a fine-tuning iteration take, learnt from pieces of it."""

from __future__ import annotations

RATE = 1 / 4
"""By how much of the difference a step's seconds move towards what was measured."""


class LayerStepTime:
    """Each of an iteration's steps has its own seconds: forward and backward, loss and optimizer differ. Of a piece
    only the sum is measured, so its steps are corrected by one factor; pieces have other borders each time, and so tell
    the steps apart. Engine thread only."""

    def __init__(self, num_steps: int) -> None:
        self._seconds = [0.0] * num_steps
        self._is_seen = [False] * num_steps

    def predicted_s(self, start: int, num_steps: int) -> float | None:
        """Of steps start, start + 1, ... of an iteration; None before any was measured."""
        return sum(self._seconds[start : start + num_steps]) if any(self._is_seen) else None

    def num_within(self, seconds: float, start: int, most: int) -> int:
        """How many steps from `start` on take no longer together; 0 before any was measured."""
        if not any(self._is_seen):
            return 0
        num_steps = 0
        for step_s in self._seconds[start : start + most]:
            seconds -= step_s
            if seconds < 0.0:
                break
            num_steps += 1
        return num_steps

    def observe(self, start: int, num_steps: int, seconds: float) -> None:
        """Steps start, start + 1, ... took so long together."""
        if not any(self._is_seen):
            self._seconds = [seconds / num_steps] * len(self._seconds)
        steps = range(start, min(start + num_steps, len(self._seconds)))
        predicted_s = sum(self._seconds[step] for step in steps)
        rate = RATE if all(self._is_seen[step] for step in steps) else 1.0
        factor = 1.0 + rate * (seconds / max(predicted_s, 1e-9) - 1.0)
        for step in steps:
            self._seconds[step] = max(self._seconds[step] * factor, 1e-9)
            self._is_seen[step] = True
