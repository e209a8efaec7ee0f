"""`headrace serve ARGUMENTS` on a device whose every launch fails after some iterations, as after an illegal access."""

from __future__ import annotations

import sys

from service.core.iteration import IterationPlan, IterationResult
from service.main import serve
from service.settings.reader import read_settings

NUM_GOOD_ITERATIONS = 5


class DoneIteration:
    def __init__(self, num_draws: int) -> None:
        self._num_draws = num_draws

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult((100,) * self._num_draws)


class LostDevice:
    """The engine's Executor."""

    def __init__(self) -> None:
        self._num_launched = 0

    def launch(self, plan: IterationPlan) -> DoneIteration:
        self._num_launched += 1
        if self._num_launched > NUM_GOOD_ITERATIONS:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return DoneIteration(plan.num_draws)


if __name__ == "__main__":
    sys.exit(serve(read_settings(sys.argv[1:]), LostDevice()))
