"""How far a result may be from the exact one, for values of about 1: a few roundings of the dtype."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]


def assert_close(got: Tensor, want: Tensor) -> None:
    assert torch.isfinite(got).all()
    tolerance = TOLERANCES[got.dtype]
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)
