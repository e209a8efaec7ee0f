"""`python -m service.process.with_parent PID MODULE ARGUMENTS`: runs the module, and ends with the process PID.

A process that is killed cannot end those that it has started.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


def end_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends: by the kernel, or, elsewhere than on Linux, by a thread of its own
    that looks now and then. On Linux also when the parent's thread ends that has started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had already ended
            os._exit(0)
    else:
        threading.Thread(target=_end_without_parent, args=(parent,), name="parent", daemon=True).start()


def _end_without_parent(parent: int) -> None:
    """Look until the parent has ended, then end this process."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(0)


def main() -> None:
    """With the process's own arguments."""
    _, parent, module, *arguments = sys.argv
    end_with_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
