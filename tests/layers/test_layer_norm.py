from __future__ import annotations

import torch
import torch.nn.functional as F

from service.layers.layer_norm import ResidualLayerNorm


def made():
    norm = ResidualLayerNorm(8, 1e-3)
    norm.weight.data, norm.bias.data = torch.randn(8), torch.randn(8)
    return norm


def test_the_stream_begins_with_x_and_grows():
    norm = made()
    x, more = torch.randn(3, 8), torch.randn(3, 8)
    out, stream = norm(x, None)
    torch.testing.assert_close(out, F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-3))
    assert torch.equal(stream, x)
    out, stream = norm(more, stream)
    torch.testing.assert_close(stream, x + more)
    torch.testing.assert_close(out, F.layer_norm(x + more, (8,), norm.weight, norm.bias, 1e-3))


def test_its_weights_have_names_and_are_views():
    norm = made()
    tensors = norm.checkpoint_tensors("ln")
    assert set(tensors) == {"ln.weight", "ln.bias"}
    tensors["ln.bias"].fill_(7)
    assert (norm.bias == 7).all()
