"""What tests of several files need: made by the worker that needs it first, and read by the others."""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-tests-once-"))
"""Of the process that has read the tests, and of those that are forked from it. Gone when it ends."""


def made_once(name: str, make: Callable[[], Made]) -> Made:
    """What `make` returns, which is pickled. Others wait meanwhile; if it raises, the next one tries."""
    path = FOLDER / name
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = pickle.dumps(make())
            path.write_bytes(made)
    return pickle.loads(path.read_bytes())


def _remove(owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(FOLDER, ignore_errors=True)


atexit.register(_remove, os.getpid())
