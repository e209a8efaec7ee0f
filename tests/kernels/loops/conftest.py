from __future__ import annotations

import pytest

from kernels.cpu_loops import CpuLoops, cpu_loops


@pytest.fixture(scope="session", autouse=True)
def loops() -> CpuLoops:
    """Every test here needs them: the files under test import numba."""
    loops = cpu_loops()
    if loops is None:
        pytest.skip("this machine runs no compiled loops")
    return loops
