"""Random adapters of random small models, with the names and shapes of the model's own weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from service.models.registry import open_model


def save_random_adapters(model: Path, folder: Path, ranks: Sequence[int]) -> dict[str, Path]:
    """One adapter per rank, by name: the first for every module, the others for every second one."""
    folders = {}
    for number, rank in enumerate(ranks):
        name = f"adapter-{number}"
        folders[name] = folder / name
        _save(model, folder / name, rank, step=1 + (number > 0), seed=number)
    return folders


def _save(model: Path, folder: Path, rank: int, step: int, seed: int) -> None:
    folder.mkdir(parents=True)
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    linears = [each for block in open_model(model).model.block_linears() for each in block]
    sites = [
        (name, linear.in_features, size)
        for names, linear, _ in linears
        for name, size in zip(names, linear.out_features, strict=True)
    ]
    for name, in_features, out_features in sites[seed % 2 :: step]:
        module = f"base_model.model.{name}"
        tensors[f"{module}.lora_A.weight"] = torch.randn(rank, in_features, generator=chance) * 0.2
        tensors[f"{module}.lora_B.weight"] = torch.randn(out_features, rank, generator=chance) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
