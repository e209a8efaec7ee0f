"""`python -m tests.deploy.read_only_root ...`: the service that can write to its volumes and /tmp only, by bubblewrap.

VOLUMES and MODEL in the environment: folders that are mounted as /mnt/volumes, to be written, and /mnt/model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]
VOLUMES = {
    "HEADRACE_DATA_DIR": "/mnt/volumes/data",
    "HF_HOME": "/mnt/volumes/huggingface",
    "TRITON_CACHE_DIR": "/mnt/volumes/triton",
    "NUMBA_CACHE_DIR": "/mnt/volumes/triton/numba",
}
"""As the image says it, in another place."""


def confined(volumes: Path, model: Path, *command: str) -> list[str]:
    """The command, as somebody without rights on a root that is read-only."""
    mounts = ["--ro-bind", "/", "/", "--tmpfs", "/mnt", "--bind", str(volumes), "/mnt/volumes"]
    mounts += ["--ro-bind", str(model), "/mnt/model", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc"]
    for ours in (str(HOME), sys.prefix):  # a checkout may lie below /tmp
        mounts += ["--ro-bind", ours, ours]
    variables = [word for name, value in VOLUMES.items() for word in ("--setenv", name, value)]
    return [
        "bwrap",
        *mounts,
        "--remount-ro",
        "/mnt",
        "--cap-drop",
        "ALL",
        "--die-with-parent",
        *variables,
        "--chdir",
        str(HOME),
        *command,
    ]


if __name__ == "__main__":
    started = [sys.executable, "-m", "service", "serve", "/mnt/model", *sys.argv[1:]]
    words = confined(Path(os.environ["VOLUMES"]), Path(os.environ["MODEL"]), *started)
    os.execvp(words[0], words)
