"""The whole service over a simulated device: shows what the host costs, without a real model.

    python -m loadtest.host_server --step-ms 10 -- MODEL --load-format dummy [other flags of `headrace serve`]

Each iteration takes `--step-ms`, starting when the one before it ends, as on a device. Every draw gives an arbitrary
id. Before each iteration the launch takes `--launch-ms` of CPU time, as a model runner's does: partly in Python, partly
in short calls that release the interpreter's lock.
The engine's thread is named `engine`, so that its share of the CPU can be told (`host_benchmark.py` does that).
"""

import argparse
import ctypes
import hashlib
import sys
import time
from dataclasses import dataclass

from service.core.iteration import IterationPlan, IterationResult
from service.main import serve
from service.settings.reader import read_settings

ENGINE_THREAD = "engine"
_SET_THREAD_NAME = 15  # PR_SET_NAME of prctl(2)
_FIRST_ID, _NUM_IDS = 300, 1000
_HASHED_WITHOUT_LOCK = bytes(16_384)
"""Hashing it takes about 10 us. hashlib releases the interpreter's lock for more than 2 KiB."""


@dataclass(frozen=True, slots=True)
class TimedIteration:
    due_s: float
    token_ids: tuple[int, ...]

    def is_done(self) -> bool:
        return time.monotonic() >= self.due_s

    def wait(self) -> IterationResult:
        time.sleep(max(0.0, self.due_s - time.monotonic()))
        return IterationResult(self.token_ids)


class TimedExecutor:
    """The engine's Executor: runs iterations one after another, all of the same duration."""

    def __init__(self, step_s: float, launch_s: float = 0.0) -> None:
        self._step_s = step_s
        self._launch_s = launch_s
        self._free_s = 0.0
        self._num_launched = 0

    def launch(self, plan: IterationPlan) -> TimedIteration:
        if self._num_launched == 0:
            ctypes.CDLL(None).prctl(_SET_THREAD_NAME, ENGINE_THREAD.encode())
        self._compute()
        self._free_s = max(self._free_s, time.monotonic()) + self._step_s
        self._num_launched += 1
        return TimedIteration(self._free_s, (_FIRST_ID + self._num_launched % _NUM_IDS,) * plan.num_draws)

    def _compute(self) -> None:
        end_s = time.thread_time() + self._launch_s
        while time.thread_time() < end_s:
            hashlib.sha256(_HASHED_WITHOUT_LOCK)
            sum(range(500))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--launch-ms", type=float, default=0.0)
    args, settings = parser.parse_known_args()
    executor = TimedExecutor(args.step_ms / 1e3, args.launch_ms / 1e3)
    return serve(read_settings([a for a in settings if a != "--"]), executor)


if __name__ == "__main__":
    sys.exit(main())
