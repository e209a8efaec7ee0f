"""Small models and many tests at once: one thread each is fastest, and does not depend on the machine's load."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache

import pytest
from httpx._transports import default as client_transports
from hypothesis import settings

from tests import data_home
from tests.examples import MARKERS, examples, thinned
from tests.ranks import Ranks, Where

pytest_plugins = ["tests.forked_workers"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

data_home.use_own()

# No deadlines: the machine that runs the tests does other things too.
settings.register_profile("headrace", max_examples=examples(50), deadline=None)
settings.load_profile("headrace")

# Each HTTP client reads every certificate of the machine when it is made, 14 ms of a core: once is enough.
client_transports.create_ssl_context = cache(client_transports.create_ssl_context)


_NO_THREADS = {"TOKENIZERS_PARALLELISM": "false", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""While tests are read, as their process may be forked afterwards: a tokenizer is trained in this thread, and NVML is
asked for a GPU, not CUDA."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """What is there once all tests are read (modules, torch, the tests) stays: collections skip it from then on.

    Half a second each would take otherwise, and while tests are read none finds anything.
    """
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in _NO_THREADS.items():
                environment.setenv(name, value)
            return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries would report it as leaks; before, pytest's last collections skip it
        pytest.MonkeyPatch().setattr(gc, "unfreeze", _UNFROZEN.unfreeze)


class _Unfrozen:
    """What a test has Python's collections look at again, as servers that end do, they skip again after it: else each
    would cost the tests behind it half a second. Python tells how many objects it skips by counting them, which takes
    as long; so here it is noted."""

    def __init__(self) -> None:
        self._unfreeze = gc.unfreeze
        self._is_noted = False

    def unfreeze(self) -> None:
        self._is_noted = True
        self._unfreeze()

    def end(self) -> None:
        if self._is_noted:
            self._is_noted = False
            gc.collect()
            gc.freeze()


_UNFROZEN = _Unfrozen()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    _UNFROZEN.end()


def pytest_itemcollected(item: pytest.Item) -> None:
    """`make unit` looks for tests of Triton's interpreter in one folder: to read all would take longer than they do."""
    if item.get_closest_marker("interpret") and not item.nodeid.startswith("tests/kernels/"):
        raise pytest.UsageError(f"{item.nodeid}: tests of Triton's interpreter stand in tests/kernels")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any("[" in asked for asked in config.args):
        return  # one combination is asked for by its name
    items[:], left = thinned(items)
    if left:
        config.hook.pytest_deselected(items=left)


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


@pytest.fixture(scope="session")
def two_gpu_ranks() -> Iterator[Ranks]:
    """With a GPU each, once they are asked for something on "cuda" (tests/equivalence/rank_work.py)."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def two_somewhere(request: pytest.FixtureRequest) -> Where:
    """Two ranks on the CPU, and on two GPUs."""
    device: str = request.param
    return Where(request.getfixturevalue("two_ranks" if device == "cpu" else "two_gpu_ranks"), device)


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that `loadtest` starts are forked, as those of `e2e/`."""
    from tests.e2e.loadtests_servers import fork_them

    fork_them(monkeypatch)
