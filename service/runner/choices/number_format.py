"""The number format in which a model is computed."""

from __future__ import annotations

from typing import Literal

import torch

from service.layers.packed_weight import can_pack
from service.models.model_config import CheckpointDtype
from service.runner.choices.timer import Timer, seconds_on_cpu
from service.runner.choices.weight_forms import bf16_is_faster

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def choose_dtype(
    requested: Literal["auto", "bfloat16", "float32"],
    device: torch.device,
    checkpoint: CheckpointDtype,
    timer: Timer = seconds_on_cpu,
) -> torch.dtype:
    """`auto` is bf16 on a GPU. On a CPU it is bf16 for a 16-bit checkpoint where bf16 is faster, else fp32."""
    if requested != "auto":
        return _DTYPES[requested]
    if device.type == "cuda":
        return torch.bfloat16
    if checkpoint != "float32" and can_pack(torch.bfloat16) and bf16_is_faster(timer):
        return torch.bfloat16
    return torch.float32
