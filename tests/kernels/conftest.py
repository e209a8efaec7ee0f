from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.quick_interpreter import make_quick


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            make_quick(patch.setattr)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test sees the same random tensors, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies row by row: by numpy's products of matrices, on some processors, a row of a tile
    is rounded otherwise than the same row elsewhere in it."""
    product = np.matmul

    def row_by_row(a: Any, b: Any, **how: Any) -> Any:
        return product(a[:, None], b, **how)[:, 0] if a.ndim == 2 else product(a, b, **how)

    monkeypatch.setattr(np, "matmul", row_by_row)
