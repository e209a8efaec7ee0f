"""Lanes and number formats of the paged attention tests, and their case carried to a lane's device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.lanes import Lane
from tests.kernels.paged_case import PagedCase
from tests.kernels.tolerances import TOLERANCES

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16


def variants(lane: str, *dtypes: torch.dtype) -> list:
    """Parameters (lane, dtype)."""
    marks = () if lane == "reference" else getattr(pytest.mark, lane)
    return [pytest.param(Lane(lane), d, marks=marks, id=f"{lane}-{str(d).removeprefix('torch.')}") for d in dtypes]


# Triton's interpreter multiplies no bf16 matrices: fp16 stands in for it.
VARIANTS = [
    *variants("reference", FLOAT32, BFLOAT16),
    *variants("interpret", FLOAT32, FLOAT16),
    *variants("gpu", FLOAT32, BFLOAT16),
]
EXACT = [*variants("reference", FLOAT32), *variants("interpret", FLOAT32), *variants("gpu", FLOAT32)]
GPU_ONLY = variants("gpu", BFLOAT16)
ON_THE_GPU = variants("gpu", FLOAT32, BFLOAT16)


def assert_close(got: Tensor, want: Tensor) -> None:
    assert torch.isfinite(got).all()
    tolerance = (TOLERANCES | {torch.float16: 3e-3})[got.dtype]
    torch.testing.assert_close(got.double().cpu(), want.double().cpu(), atol=tolerance, rtol=tolerance)


def put(case: PagedCase, lane: Lane) -> PagedCase:
    """The tensors that the kernel gets, on the lane's device; the caches still one layer's views of one storage."""
    storage = lane.put(case.key_cache._base)
    key_cache, value_cache = (
        storage.as_strided(view.size(), view.stride(), view.storage_offset())
        for view in (case.key_cache, case.value_cache)
    )
    table, lens = lane.put(case.block_table), lane.put(case.context_lens)
    return replace(case, key_cache=key_cache, value_cache=value_cache, block_table=table, context_lens=lens)
