"""Converts a plain checkpoint to int4 in compressed-tensors' format (pack-quantized, with zero points), without data:

    python -m loadtest.int4_checkpoint MODEL_FOLDER NEW_FOLDER [--group-size 32]

Tries several ranges for each group and keeps the scale and zero point with the smallest squared error. Such a search is
the clipping of OmniQuant and AWQ (Shao et al. 2023, Lin et al. 2023); here ranges may also be wider than the group's,
since zero points are whole numbers. Tools that use activations do better (docs/quantization.md), as does
loadtest.int4_with_data; this one needs only torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_RANGES = [1.1 - step / 40 for step in range(20)]
"""The ranges that are tried, as multiples of the group's own range."""

Rounded = tuple[Tensor, Tensor, Tensor]
"""elements [N, K] int64 in 0..15, zeros [N, G] int64 in 0..15, scales [N, G] fp32 (exactly representable in bf16). A
weight is about (element - zero) * scale."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="convert a plain checkpoint to int4")
    parser.add_argument("model", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--group-size", type=int, default=32)
    options = parser.parse_args(arguments)
    make_int4(options.model, options.new, options.group_size)


def make_int4(model: Path, new: Path, group_size: int) -> None:
    write_int4(model, new, group_size, {})


def is_linear(name: str) -> bool:
    """Whether this tensor is quantized. For models whose linears are named ..._proj."""
    return name.endswith("_proj.weight")


def write_int4(model: Path, new: Path, group_size: int, rounded: Mapping[str, Rounded]) -> None:
    """Write the folder `new`: the model's small files unchanged, its config with a quantization_config added, all
    weights in one file. rounded: linears that are rounded already, by weight name; the others are rounded here."""

    def pack(name: str, tensor: Tensor) -> dict[str, Tensor]:
        return _packed(name, tensor, rounded[name] if name in rounded else round_groups(tensor.float(), group_size))

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group_size, "symmetric": False}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }
    write_quantized(model, new, pack, config)


def write_quantized(
    model: Path, new: Path, quantize: Callable[[str, Tensor], Mapping[str, Tensor]], config: Mapping[str, Any]
) -> None:
    """Like `write_int4`. quantize: what takes the place of a linear's weight, by its name. config: the
    quantization_config."""
    new.mkdir(parents=True)
    for file in model.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            shutil.copy(file, new)
    tensors: dict[str, Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            tensors |= quantize(name, tensor) if is_linear(name) else {name: tensor}
    save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((new / "config.json").read_text()) | {"quantization_config": config}
    (new / "config.json").write_text(json.dumps(written, indent=2) + "\n")


def _packed(name: str, weight: Tensor, rounded: Rounded) -> dict[str, Tensor]:
    elements, zeros, scales = rounded
    stem = name.removesuffix("weight")
    return {
        f"{stem}weight_packed": pack_words(elements),
        f"{stem}weight_zero_point": pack_words(zeros.T).T.contiguous(),
        f"{stem}weight_scale": scales.to(weight.dtype),
        f"{stem}weight_shape": torch.tensor(weight.shape),
    }


def round_groups(weight: Tensor, group_size: int) -> Rounded:
    """Quantize a weight, fp32 [N, K]."""
    num_features, size = weight.shape
    groups = weight.view(num_features, size // group_size, group_size)
    lowest, highest = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    best = torch.full_like(lowest, float("inf"))
    elements = torch.zeros_like(groups)
    zeros, scales = torch.zeros_like(lowest), torch.ones_like(lowest)
    for factor in _RANGES:
        scale = ((highest - lowest) * factor / 15).clamp(min=1e-8).bfloat16().float()
        zero = (-lowest * factor / scale).round().clamp(0, 15)
        rounded = (groups / scale[:, :, None]).round().add(zero[:, :, None]).clamp(0, 15)
        error = ((rounded - zero[:, :, None]) * scale[:, :, None] - groups).square().sum(2)
        is_better = error < best
        best = torch.where(is_better, error, best)
        zeros, scales = torch.where(is_better, zero, zeros), torch.where(is_better, scale, scales)
        elements = torch.where(is_better[:, :, None], rounded, elements)
    return elements.view(num_features, size).long(), zeros.long(), scales


def pack_words(values: Tensor) -> Tensor:
    """[R, C] in 0..15 -> [R, C / 8] int32; of 8 neighbours the first is in the lowest bits."""
    shifts = torch.arange(0, 32, 4)
    words = (values.reshape(values.shape[0], -1, 8) << shifts).sum(2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


if __name__ == "__main__":
    main()
