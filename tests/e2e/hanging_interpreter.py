"""`headrace serve ARGUMENTS` where native code keeps the interpreter to itself after some iterations."""

from __future__ import annotations

import ctypes
import sys

from service.core.iteration import IterationPlan
from service.main import serve
from service.settings.reader import read_settings
from tests.e2e.hanging_device import NUM_GOOD_ITERATIONS, HangingExecutor, LastIteration


class GreedyExecutor(HangingExecutor):
    def launch(self, plan: IterationPlan) -> LastIteration:
        if self._num_launched == NUM_GOOD_ITERATIONS:
            hold_the_interpreter()
        return super().launch(plan)


def hold_the_interpreter() -> None:
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second never returns, nor does it let others have the interpreter
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


if __name__ == "__main__":
    sys.exit(serve(read_settings(sys.argv[1:]), GreedyExecutor()))
