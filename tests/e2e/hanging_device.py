"""`headrace serve ARGUMENTS` on a device that stops answering after some iterations, as with a stuck kernel."""

from __future__ import annotations

import sys
import threading

from service.core.iteration import IterationPlan, IterationResult
from service.main import serve
from service.settings.reader import read_settings

NUM_GOOD_ITERATIONS = 5


class LastIteration:
    def __init__(self, num_draws: int, *, hangs: bool) -> None:
        self._num_draws = num_draws
        self._hangs = hangs

    def is_done(self) -> bool:
        return not self._hangs

    def wait(self) -> IterationResult:
        if self._hangs:
            threading.Event().wait()
        return IterationResult((100,) * self._num_draws)


class HangingExecutor:
    """The engine's Executor."""

    def __init__(self) -> None:
        self._num_launched = 0

    def launch(self, plan: IterationPlan) -> LastIteration:
        self._num_launched += 1
        num_draws = plan.num_draws
        return LastIteration(num_draws, hangs=self._num_launched > NUM_GOOD_ITERATIONS)


if __name__ == "__main__":
    sys.exit(serve(read_settings(sys.argv[1:]), HangingExecutor()))
