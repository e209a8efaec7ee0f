from __future__ import annotations

import torch

from service.layers.rms_norm import ResidualRMSNorm, RMSNorm


def normed(x):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def test_norms_the_last_dimension():
    norm = RMSNorm(8, 1e-5)
    norm.weight.data = torch.full((8,), 2.0)
    x = torch.randn(3, 4, 8)
    torch.testing.assert_close(norm(x), 2 * normed(x))


def test_the_stream_begins_with_x_and_grows():
    norm = ResidualRMSNorm(8, 1e-5)
    norm.weight.data = torch.ones(8)
    x, more = torch.randn(3, 8), torch.randn(3, 8)
    out, stream = norm(x, None)
    torch.testing.assert_close(out, normed(x))
    assert torch.equal(stream, x)
    out, stream = norm(more, stream)
    torch.testing.assert_close(stream, x + more)
    torch.testing.assert_close(out, normed(x + more))
