"""Small models and many tests at once: one thread each is fastest, and does not depend on the machine's load."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.ranks import Ranks

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_data_home = tempfile.TemporaryDirectory(prefix="headrace-tests-")
atexit.register(_data_home.cleanup)
os.environ["XDG_DATA_HOME"] = _data_home.name
"""Servers that tests start keep their files here, not among the user's."""


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.stop()
