"""Where servers that tests start keep their files: not among the user's."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def use_own() -> None:
    """From here on this process, and all that it starts, has a folder that is gone when it ends."""
    folder = tempfile.mkdtemp(prefix="headrace-tests-")
    os.environ["XDG_DATA_HOME"] = folder
    atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not one that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
