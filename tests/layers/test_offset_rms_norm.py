from __future__ import annotations

import pytest
import torch

from service.layers.offset_rms_norm import OffsetRMSNorm, ResidualOffsetRMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_scaled_by_one_and_the_weight_without_rounding_their_sum(dtype: torch.dtype):
    x = torch.randn(5, 48, dtype=dtype)
    residual = torch.randn(5, 48, dtype=dtype)
    norm, joined = OffsetRMSNorm(48, 1e-6), ResidualOffsetRMSNorm(48, 1e-6)
    for module in (norm, joined):
        module.weight.data = (0.01 * torch.randn(48)).to(dtype)
        module.finish_reading()
    assert norm.scale.dtype == torch.float32

    def want(of: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        exact = of.float()
        return (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.float())).to(dtype)

    torch.testing.assert_close(norm(x), want(x, norm.weight))
    first, stream = joined(x, None)
    torch.testing.assert_close(first, want(x, joined.weight))
    assert stream is x
    total = x + residual
    normed, stream = joined(x, residual.clone())
    torch.testing.assert_close(stream, total)
    torch.testing.assert_close(normed, want(total, joined.weight))
