"""Writes a trained adapter as a folder in PEFT's format, for this server, PEFT, and other servers that read it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from service.finetune.training_state import TrainingState
from service.lora.adapter_config import CONFIG_FILE
from service.lora.adapter_folder import WEIGHTS_FILE
from service.lora.tensor_file import write_tensors

_PREFIX = "base_model.model."
"""PEFT's prefix for the base model's module names."""


def export_adapter(folder: Path, state: TrainingState, alpha: float, base_name: str) -> None:
    """Write the adapter into the existing `folder` and sync its files.

    alpha: the product of B and A is multiplied by alpha / rank. base_name: recorded in the config. Raises OSError.
    """
    with (folder / WEIGHTS_FILE).open("wb") as file:
        write_tensors(file, _tensors(state), {"format": "pt"})
        file.flush()
        os.fsync(file.fileno())
    with (folder / CONFIG_FILE).open("w", encoding="utf-8") as config:
        json.dump(_config(state, alpha, base_name), config, indent=2)
        config.flush()
        os.fsync(config.fileno())


def _tensors(state: TrainingState) -> Mapping[str, Tensor]:
    return {
        f"{_PREFIX}{name}.lora_{kind}.weight": matrix
        for name, matrices in state.matrices().items()
        for kind, matrix in zip("AB", matrices, strict=True)
    }


def _config(state: TrainingState, alpha: float, base_name: str) -> Mapping[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": state.layout.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.rpartition(".")[2] for name in state.layout.sites}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }
