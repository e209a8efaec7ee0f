"""Plain checkpoints made quantized ones of every format, written element by element from the formats' specifications,
and the plain checkpoint that each stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.models.text_part import text_fields, text_name

_INT8_INPUTS = {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
Tensors = dict[str, Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 32
_QUANTIZED = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
Format = tuple[dict[str, Any], Callable[[Tensor], tuple[Tensors, Tensor]]]
"""config.json's quantization_config; and of a weight what is stored, by what stands behind the linear's name, and what
that stands for."""
_FP8_INPUTS = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}


def quantized(folder: Path, kind: str, formats: Mapping[str, Format] | None = None) -> Path:
    """Beside the folder, the same model quantized, and in its folder `plain`, what it stands for in fp32. Of a model
    with vision the text part is. formats: other ones than FORMATS."""
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    fields, quantize = (formats or FORMATS)[kind]
    new: Tensors = {}
    plain: Tensors = {}
    torch.manual_seed(0)
    for name, tensor in tensors.items():
        new[name] = plain[name] = tensor
        if name.endswith(_QUANTIZED) and (text_fields(config) is None or text_name(name) is not None):
            del new[name]
            written, stands_for = quantize(tensor)
            new |= {f"{name.removesuffix('.weight')}.{suffix}": value for suffix, value in written.items()}
            plain[name] = stands_for
    there = folder.parent / f"{folder.name}-{kind}"
    _save(there, {**config, "quantization_config": fields}, new)
    _save(there / "plain", config, plain)
    return there


def _save(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
        "version": "0.9.1",
    }


def _float_weights(strategy: str, **more: Any) -> dict[str, Any]:
    return {"type": "float", "num_bits": 8, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


def _int_weights(strategy: str, **more: Any) -> dict[str, Any]:
    return {"type": "int", "num_bits": 4, "strategy": strategy, "dynamic": False, "observer": "minmax", **more}


def _fp8_channels(weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    elements = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": elements, "weight_scale": scale}, elements.float() * scale


def _fp8_tensor(weight: Tensor) -> tuple[Tensors, Tensor]:
    """With a static scale for the activations."""
    scale = weight.abs().max() / 448
    elements = (weight / scale).to(torch.float8_e4m3fn)
    written = {"weight": elements, "weight_scale": scale, "input_scale": torch.tensor(0.02)}
    return written, elements.float() * scale


def _fp8_blocks(suffix: str) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        """Of 16 rows by 32, the last of which may have fewer rows."""
        rows, size = weight.shape
        scales = torch.rand(-(-rows // 16), size // 32) / 200 + 0.001
        spread = scales.repeat_interleave(16, 0)[:rows].repeat_interleave(32, 1)
        elements = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": elements, suffix: scales}, elements.float() * spread

    return quantize


def _numbers(weight: Tensor, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Elements [N, K], zeros [N, G] and scales [N, G], fp16."""
    rows, size = weight.shape
    grouped = weight.view(rows, size // group, group)
    if symmetric:
        scales = (grouped.abs().amax(2) / 7).half()
        zeros = torch.full_like(scales, 8).int()
    else:
        scales = ((grouped.amax(2) - grouped.amin(2)) / 15).half()
        zeros = (-grouped.amin(2) / scales.float()).round().clamp(1, 15).int()
    elements = (grouped / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(0, 15).int()
    return elements.view(rows, size), zeros, scales


def _stands_for(elements: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    group = elements.shape[1] // scales.shape[1]
    less = elements - zeros.repeat_interleave(group, 1)
    return less.float() * scales.float().repeat_interleave(group, 1)


def _words(rows: list[list[int]], order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Of every 8 neighbours in a row a word of 32 bits: bits 4 i to 4 i + 3 hold neighbour order[i]."""
    words = [[sum(row[first + order[i]] << 4 * i for i in range(8)) for first in range(0, len(row), 8)] for row in rows]
    return torch.tensor(
        [[word - (1 << 32) if word >> 31 else word for word in row] for row in words], dtype=torch.int32
    )


def _awq(weight: Tensor) -> tuple[Tensors, Tensor]:
    elements, zeros, scales = _numbers(weight, GROUP, symmetric=False)
    written = {
        "qweight": _words(elements.T.tolist(), AWQ_ORDER),
        "qzeros": _words(zeros.T.tolist(), AWQ_ORDER),
        "scales": scales.T,
    }
    return written, _stands_for(elements, zeros, scales)


def _gptq(stored_less: int) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        elements, zeros, scales = _numbers(weight, GROUP, symmetric=False)
        written = {
            "qweight": _words(elements.tolist()).T,
            "qzeros": _words((zeros - stored_less).T.tolist()),
            "scales": scales.T,
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
            "bias": torch.zeros(len(weight)),
        }
        return written, _stands_for(elements, zeros, scales)

    return quantize


def _packed(*, symmetric: bool, group: int | None = GROUP) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        elements, zeros, scales = _numbers(weight, group or weight.shape[1], symmetric=symmetric)
        written = {
            "weight_packed": _words(elements.tolist()),
            "weight_scale": scales.bfloat16(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            written["weight_zero_point"] = _words(zeros.T.tolist()).T
        return written, _stands_for(elements, zeros, scales.bfloat16())

    return quantize


def _int8(layout: str, group: int | None = None) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    """layout: bytes, or four elements plus 128 in a word, along a row (packed) or down a column (gptq)."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        rows, size = weight.shape
        grouped = weight.view(rows, -1, group or size)
        scales = (grouped.abs().amax(2) / 127.5).bfloat16()
        elements = (grouped / scales.float()[:, :, None]).round().clamp(-128, 127).to(torch.int8).view(rows, size)
        spread = scales.float().repeat_interleave(group or size, 1)
        words = (elements.int() + 128).to(torch.uint8).contiguous()
        match layout:
            case "bytes":
                written = {"weight": elements, "weight_scale": scales}
            case "packed":
                shape = torch.tensor(weight.shape)
                written = {"weight_packed": words.view(torch.int32), "weight_scale": scales, "weight_shape": shape}
            case _:
                zeros = torch.full((size // (group or size), rows // 4), 0x7F7F7F7F, dtype=torch.int32)
                order = torch.arange(size, dtype=torch.int32) // (group or size)
                written = {"qweight": words.view(torch.int32).T, "scales": scales.T, "qzeros": zeros, "g_idx": order}
        return written, elements.float() * spread

    return quantize


def _int8_tensor(weight: Tensor) -> tuple[Tensors, Tensor]:
    """With a static scale and zero for the activations."""
    scale = weight.abs().max() / 127.5
    elements = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    inputs = {"input_scale": torch.tensor([0.02]), "input_zero_point": torch.tensor([3], dtype=torch.int8)}
    return {"weight": elements, "weight_scale": scale.view(1), **inputs}, elements.float() * scale


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "damp_percent": 0.01}
_AUTO_ROUND = {
    "quant_method": "auto-round",
    "bits": 4,
    "data_type": "int",
    "group_size": GROUP,
    "sym": True,
    "autoround_version": "0.15.1",
    "block_name_to_quantize": "model.layers",
    "enable_quanted_input": False,
    "static_attention_granularity": "tensor",
    "static_kv_granularity": "tensor",
}

FORMATS: dict[str, Format] = {
    "channels": (_compressed(_float_weights("channel"), _FP8_INPUTS, "float-quantized"), _fp8_channels),
    "tensor": (
        _compressed(_float_weights("tensor"), {**_FP8_INPUTS, "strategy": "tensor", "dynamic": False}, "naive"),
        _fp8_tensor,
    ),
    "auto-fp8": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, _fp8_tensor),
    "blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [16, 32]},
        _fp8_blocks("weight_scale_inv"),
    ),
    "compressed-blocks": (
        _compressed(_float_weights("block", block_structure=[16, 32]), _FP8_INPUTS, "float-quantized"),
        _fp8_blocks("weight_scale"),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        _awq,
    ),
    "gptq": (_GPTQ, _gptq(1)),
    "auto-round": ({**_AUTO_ROUND, "packing_format": "auto_round:auto_gptq"}, _gptq(1)),
    "auto-round-awq": ({**_AUTO_ROUND, "packing_format": "auto_round:auto_awq"}, _awq),
    "gptq-v2": ({**_GPTQ, "checkpoint_format": "gptq_v2"}, _gptq(0)),
    "packed": (
        _compressed(_int_weights("group", group_size=GROUP, symmetric=True), None, "pack-quantized"),
        _packed(symmetric=True),
    ),
    "packed-zeros": (
        _compressed(_int_weights("group", group_size=GROUP, symmetric=False), None, "pack-quantized"),
        _packed(symmetric=False),
    ),
    "packed-channels": (
        _compressed(_int_weights("channel", symmetric=True), None, "pack-quantized"),
        _packed(symmetric=True, group=None),
    ),
    "int8-channels": (
        _compressed({**_int_weights("channel", symmetric=True), "num_bits": 8}, _INT8_INPUTS, "int-quantized"),
        _int8("bytes"),
    ),
    "int8-tensor": (
        _compressed(
            {**_int_weights("tensor", symmetric=True), "num_bits": 8},
            {**_INT8_INPUTS, "strategy": "tensor", "dynamic": False, "symmetric": False},
            "int-quantized",
        ),
        _int8_tensor,
    ),
    "int8-packed": (
        _compressed({**_int_weights("group", group_size=GROUP), "num_bits": 8}, None, "pack-quantized"),
        _int8("packed", GROUP),
    ),
    "int8-packed-channels": (
        _compressed({**_int_weights("channel", symmetric=True), "num_bits": 8}, None, "pack-quantized"),
        _int8("packed"),
    ),
    "gptq-8": ({**_GPTQ, "bits": 8}, _int8("gptq", GROUP)),
}
