"""Weights for measuring without a checkpoint: `--load-format dummy`."""

from __future__ import annotations

import torch
from torch import Tensor

from service.layers.shard import Shard
from service.models.causal_lm import CausalLM

_STD = 0.02
_MXFP4_SCALE = 120  # 2^-7, times numbers of root mean square 2.9


def fill_with_dummy_weights(model: CausalLM, seed: int) -> None:
    """Normal values of mean 0 and standard deviation 0.02, reproducible on one kind of device; norms are ones.

    Numbers of four bits are drawn evenly. Norms are the one-dimensional weights: at 0.02 they would fade every
    activation to nothing. A rank's values are its part of those that one rank would have, so that the tokens are the
    same: it makes all of them, a tensor at a time.
    """
    shards = model.checkpoint_shards()
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for name, tensor in model.checkpoint_tensors().items():
        if tensor.dim() == 1 and name.endswith(".weight"):
            tensor.fill_(1.0)
        elif name.endswith("_scales"):
            tensor.fill_(_MXFP4_SCALE)
        elif name not in shards:
            _draw(tensor, generator)
        else:
            whole = _draw(_whole_like(tensor, shards[name], device), generator)
            if tensor.numel():
                tensor.copy_(shards[name].of(whole))


def _draw(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return tensor.normal_(0.0, _STD, generator=generator)
    return tensor.random_(0, 256, generator=generator)


def _whole_like(part: Tensor, shard: Shard, device: torch.device) -> Tensor:
    """Laid out as the part is: in which order values are made goes by that."""
    shape, dtype = shard.whole_shape(part.shape), part.dtype
    if part.dim() > 1 and part.stride(-2) < part.stride(-1):
        return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=device).transpose(-1, -2)
    return torch.empty(shape, dtype=dtype, device=device)
