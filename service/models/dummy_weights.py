"""Weights for measuring without a checkpoint: `--load-format dummy`."""

from __future__ import annotations

import torch

from service.models.causal_lm import CausalLM

_STD = 0.02
_MXFP4_SCALE = 120  # 2^-7, times numbers of root mean square 2.9


def fill_with_dummy_weights(model: CausalLM, seed: int) -> None:
    """Normal values of mean 0 and standard deviation 0.02, reproducible on one kind of device; norms are ones.

    Numbers of four bits are drawn evenly. Norms are the one-dimensional weights: at 0.02 they would fade every
    activation to nothing.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for name, tensor in model.checkpoint_tensors().items():
        if tensor.dim() == 1 and name.endswith(".weight"):
            tensor.fill_(1.0)
            continue
        if name.endswith("_scales"):
            tensor.fill_(_MXFP4_SCALE)
            continue
        if tensor.device not in generators:
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)
        if tensor.is_floating_point():
            tensor.normal_(0.0, _STD, generator=generators[tensor.device])
        else:
            tensor.random_(0, 256, generator=generators[tensor.device])
