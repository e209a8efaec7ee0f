"""Random weights, for measurements without a checkpoint: `--load-format dummy`."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from kernels.quantized_weight import FP8
from service.layers.weight_storage import Destination
from service.models.causal_lm import CausalLM

_STD = 0.02
_MXFP4_SCALE = 120  # 2^-7; times numbers of root mean square 2.9
_SCALE = 2.0**-8
"""Scale of other quantized weights: times numbers of root mean square 4.6 (int4), or numbers that make _STD of it
(fp8). It is exact in 16 bits, like the scales of published checkpoints; otherwise int4's scales would stay in 32 bits
and take time that no real model takes."""


def fill_with_dummy_weights(model: CausalLM, seed: int) -> None:
    """Normal values of mean 0 and standard deviation 0.02, reproducible on one kind of device; norms are ones.

    4-bit numbers are uniform. One-dimensional weights count as norms: at 0.02 they would let every activation fade to
    nothing. The values depend on the tensor's name only. A rank makes each tensor whole, one at a time, and keeps its
    part, so the tokens do not depend on the number of ranks and stages.
    """
    shards = model.checkpoint_shards()
    device = next(model.parameters()).device
    generator = torch.Generator(device)
    for name, place in model.checkpoint_tensors().items():
        generator.manual_seed(_seed_of(name, seed))
        if len(place.shape) == 1 and name.endswith(".weight"):
            place.copy_(torch.ones(place.shape))
        elif name.endswith("_scales"):
            place.copy_(torch.full(place.shape, _MXFP4_SCALE))
        elif isinstance(place, Tensor) and name.endswith((".scales", "weight_scale", "weight_scale_inv")):
            place.fill_(_SCALE)
        elif isinstance(place, Tensor) and name not in shards and place.dtype is not FP8:
            _draw(place, generator)
        else:
            shape = shards[name].whole_shape(place.shape) if name in shards else tuple(place.shape)
            whole = _draw(_whole_like(place, shape, device), generator)
            part = shards[name].of(whole) if name in shards and place.shape.numel() else whole
            if part.shape == place.shape:
                place.copy_(part.div_(_SCALE) if place.dtype is FP8 else part)


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]) >> 1


def _draw(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return tensor.normal_(0.0, _STD, generator=generator)
    if tensor.dtype is torch.uint8:
        return tensor.random_(0, 256, generator=generator)
    return tensor.random_(generator=generator)


def _whole_like(part: Destination, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Laid out like the part, because the layout decides in which order values are made."""
    if not isinstance(part, Tensor):
        return torch.empty(shape, device=device)
    dtype = torch.float32 if part.dtype is FP8 else part.dtype
    if part.dim() > 1 and part.stride(-2) < part.stride(-1):
        return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=device).transpose(-1, -2)
    return torch.empty(shape, dtype=dtype, device=device)
