"""The whole service, but its device only takes time: what the host costs, without a model worth the name.

    python -m loadtest.host_server --step-ms 10 -- MODEL --load-format dummy [other flags of `headrace serve`]

Each iteration takes `--step-ms` from the end of the one before it, as on a device, and every draw gives some id.
The engine's thread calls itself `engine`, so that its share of the CPU can be told (`host_benchmark.py` does).
"""

import argparse
import ctypes
import sys
import time
from dataclasses import dataclass

from service.core.iteration_plan import IterationPlan
from service.core.iteration_result import IterationResult
from service.main import serve
from service.settings import read_settings

ENGINE_THREAD = "engine"
_SET_THREAD_NAME = 15  # PR_SET_NAME of prctl(2)
_FIRST_ID, _NUM_IDS = 300, 1000


@dataclass(frozen=True, slots=True)
class TimedIteration:
    due_s: float
    token_ids: tuple[int, ...]

    def wait(self) -> IterationResult:
        time.sleep(max(0.0, self.due_s - time.monotonic()))
        return IterationResult(self.token_ids)


class TimedExecutor:
    """The engine's Executor: one iteration after the other, each of the same time."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._free_s = 0.0
        self._num_launched = 0

    def launch(self, plan: IterationPlan) -> TimedIteration:
        if self._num_launched == 0:
            ctypes.CDLL(None).prctl(_SET_THREAD_NAME, ENGINE_THREAD.encode())
        self._free_s = max(self._free_s, time.monotonic()) + self._step_s
        self._num_launched += 1
        num_draws = sum(len(item.samples) for item in plan.scheduled)
        return TimedIteration(self._free_s, (_FIRST_ID + self._num_launched % _NUM_IDS,) * num_draws)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=10.0)
    args, settings = parser.parse_known_args()
    return serve(read_settings([a for a in settings if a != "--"]), TimedExecutor(args.step_ms / 1e3))


if __name__ == "__main__":
    sys.exit(main())
