"""How long the layer steps of a fine-tuning iteration take, learned from measured pieces of it."""

from __future__ import annotations

import math

RATE = 1 / 8
"""Weight of a new measurement in a step's usual seconds: the exponent of measured / usual."""

KEEP = 0.7
"""Decay of a piece's weight in the ratio of the current iteration, per later piece."""

SHORTEST_S = 1e-9

ENOUGH_PIECES = 3
FAR_LONGER = 8.0
"""Times the shortest step. A loss takes about five times a layer's forward pass, a kernel's compilation hundreds."""

PRIOR = 0.5
"""Weight of the usual seconds beside a piece's measured ones."""


class LayerStepTime:
    """Every step of an iteration has its own usual seconds, since forward, backward, loss and optimizer differ. Only a
    piece's total is measured, so all of its steps are corrected by one factor; pieces have different borders each time,
    which tells the steps apart over time. An iteration with more tokens than usual takes longer by some ratio, which is
    learned from its first pieces.

    A step's first run may compile kernels or allocate memory, so the lesser of its first two measurements counts. A
    step that was never measured is assumed to be as short as the shortest. Engine thread only."""

    def __init__(self, num_steps: int) -> None:
        self._usual_s: list[float | None] = [None] * num_steps
        self._num_seen = [0] * num_steps
        self._shortest_s = math.inf  # least mean seconds per step of any piece
        self._num_pieces = 0
        self._ratio = 1.0  # the current iteration relative to a usual one
        self._measured_s = self._expected_s = 0.0  # decayed sums over its pieces

    def is_doubtful(self, step: int) -> bool:
        """Whether the step may really be much shorter than predicted: hardly anything was measured, or this step only
        once, and it then took far longer than others."""
        if self._num_pieces < ENOUGH_PIECES:
            return True
        return self._num_seen[step] == 1 and self._seconds(step) > FAR_LONGER * self._shortest_s

    def predicted_s(self, start: int, num_steps: int) -> float | None:
        """Predicted seconds of steps start, start + 1, ...: of the current iteration if start > 0, else of the next
        one. None before any step was measured."""
        if self._shortest_s == math.inf:
            return None
        return sum(map(self._seconds, range(start, self._end(start, num_steps)))) * self._ratio_at(start)

    def num_within(self, seconds: float, start: int, most: int) -> int:
        """How many steps, from `start` on and up to `most`, fit into `seconds`; 0 before any step was measured."""
        if self._shortest_s == math.inf:
            return 0
        num_steps, ratio = 0, self._ratio_at(start)
        for step in range(start, self._end(start, most)):
            seconds -= self._seconds(step) * ratio
            if seconds < 0.0:
                break
            num_steps += 1
        return num_steps

    def observe(self, start: int, num_steps: int, seconds: float) -> None:
        """Steps start, start + 1, ..., start + num_steps - 1 together took `seconds`."""
        steps = range(start, self._end(start, num_steps))
        self._num_pieces += 1
        self._shortest_s = min(self._shortest_s, max(seconds / num_steps, SHORTEST_S))
        if start == 0:
            self._ratio, self._measured_s, self._expected_s = 1.0, 0.0, 0.0
        usual_s = sum(map(self._seconds, steps))
        is_known = all(self._num_seen[step] > 1 for step in steps)
        if is_known:
            self._measured_s = KEEP * self._measured_s + seconds
            self._expected_s = KEEP * self._expected_s + usual_s
            self._ratio = (self._measured_s + PRIOR * usual_s) / (self._expected_s + PRIOR * usual_s)
        factor = (max(seconds, SHORTEST_S) / usual_s) ** RATE if is_known else seconds / self._ratio / usual_s
        for step in steps:
            measured_s = max(self._seconds(step) * factor, SHORTEST_S)
            is_second = self._num_seen[step] == 1
            self._usual_s[step] = min(measured_s, self._seconds(step)) if is_second else measured_s
            self._num_seen[step] += 1

    def _seconds(self, step: int) -> float:
        usual_s = self._usual_s[step]
        return self._shortest_s if usual_s is None else usual_s

    def _end(self, start: int, num_steps: int) -> int:
        return min(start + num_steps, len(self._usual_s))

    def _ratio_at(self, start: int) -> float:
        return self._ratio if start else 1.0
