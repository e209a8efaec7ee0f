"""`python -m service.ray_serve.with_parent PID MODULE ARGUMENTS`: runs the module, and ends with the process PID.

A replica that is killed cannot end its server.
"""

from __future__ import annotations

import runpy
import sys

from service.distributed.rank_life import end_with_parent


def main() -> None:
    """With the process's own arguments."""
    _, parent, module, *arguments = sys.argv
    end_with_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
