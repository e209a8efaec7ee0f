"""How long the layer steps of a fine-tuning iteration take, learnt from pieces of it."""

from __future__ import annotations

import math

RATE = 1 / 8
"""By what power of the ratio a step's usual seconds follow what was measured."""

KEEP = 0.7
"""Of the weight of a piece for the present iteration's ratio, with each piece behind it."""

SHORTEST_S = 1e-9

ENOUGH_PIECES = 3
FAR_LONGER = 8.0
"""Times the shortest step; a loss takes five times a layer's forward pass, a kernel's compilation hundreds."""

PRIOR = 0.5
"""Weight of the usual seconds beside a piece's own."""


class LayerStepTime:
    """Each of an iteration's steps has its usual seconds: forward and backward, loss and optimizer differ. Of a piece
    only the sum is measured, so its steps are corrected by one factor; pieces have other borders each time, and so tell
    the steps apart. How much longer than usual an iteration takes, which has more tokens than others, its own first
    pieces tell.

    A step's first run may compile kernels or take memory. So of its first two measurements the lesser counts, and a
    step that was never measured is taken for the shortest that was. Engine thread only."""

    def __init__(self, num_steps: int) -> None:
        self._usual_s: list[float | None] = [None] * num_steps
        self._num_seen = [0] * num_steps
        self._shortest_s = math.inf  # a step's mean of the pieces
        self._num_pieces = 0
        self._ratio = 1.0  # of the iteration under way to a usual one
        self._measured_s = self._expected_s = 0.0  # its last pieces

    def is_doubtful(self, step: int) -> bool:
        """Whether the step may take far less than predicted: next to nothing was measured, or the step once only, and
        then it took much longer than others do."""
        if self._num_pieces < ENOUGH_PIECES:
            return True
        return self._num_seen[step] == 1 and self._seconds(step) > FAR_LONGER * self._shortest_s

    def predicted_s(self, start: int, num_steps: int) -> float | None:
        """Of steps start, start + 1, ... of an iteration, of the one under way if start > 0; None before any step was
        measured."""
        if self._shortest_s == math.inf:
            return None
        return sum(map(self._seconds, range(start, self._end(start, num_steps)))) * self._ratio_at(start)

    def num_within(self, seconds: float, start: int, most: int) -> int:
        """How many steps from `start` on take no longer together; 0 before any was measured."""
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
        """Steps start, start + 1, ... took so long together."""
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
