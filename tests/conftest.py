"""Small models and many tests at once: one thread each is fastest, and does not depend on the machine's load."""

from __future__ import annotations

import atexit
import os
import sys
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


_MUCH = 4 << 30
"""Bytes of a device's memory that a test may leave reserved for the next."""


@pytest.fixture(autouse=True)
def device_memory_for_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """Several processes of tests share one GPU: what a test took and freed goes back to the device."""
    yield
    torch = sys.modules.get("torch")
    if torch is None or request.node.get_closest_marker("gpu") is None or not torch.cuda.is_initialized():
        return
    if torch.cuda.memory_reserved() > _MUCH:
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.stop()
