"""Plain checkpoints as bitsandbytes quantizes them, written element by element: formats for `quantized`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.models.quantized_checkpoints import Format, Tensors

_NF4 = [
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.091050036, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
]
_FP4 = [each / 12 for each in (0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3)]
TABLES = {"nf4": _NF4, "fp4": _FP4}


def of_4_bits(
    kind: str,
    block_size: int = 64,
    *,
    nested: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    storage: torch.dtype = torch.uint8,
) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    """storage: as which the packed bytes are stored."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        numbers, table = weight.flatten().tolist(), TABLES[kind]
        blocks = [numbers[first : first + block_size] for first in range(0, len(numbers), block_size)]
        state = {"quant_type": kind, "blocksize": block_size, "dtype": _name(dtype), "shape": list(weight.shape)}
        absmax = torch.tensor([max(map(abs, block)) for block in blocks])
        written: Tensors = {"absmax": absmax}
        if nested:
            of_absmax, absmax, facts = _nested(absmax)
            written, state = of_absmax, state | facts
        elements = [
            min(range(16), key=lambda i, part=number / scale: abs(table[i] - part))
            for block, scale in zip(blocks, absmax.tolist(), strict=True)
            for number in block
        ]
        stands_for = torch.tensor(table)[elements] * absmax.repeat_interleave(block_size)[: len(numbers)]
        elements += [0] * (len(elements) % 2)
        pairs = [first << 4 | second for first, second in zip(elements[::2], elements[1::2], strict=True)]
        written["quant_map"] = torch.tensor(table)
        written[f"quant_state.bitsandbytes__{kind}"] = as_bytes(state)
        packed = torch.tensor(pairs, dtype=torch.uint8).view(storage)[:, None]
        named = {"weight": packed} | {f"weight.{name}": part for name, part in written.items()}
        return named, stands_for.to(dtype).float().view(weight.shape)

    return quantize


def as_bytes(state: object) -> Tensor:
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def _nested(absmax: Tensor) -> tuple[Tensors, Tensor, dict[str, Any]]:
    """What is stored for it, what that stands for, and what the JSON says of it."""
    offset = absmax.mean()
    less = absmax - offset
    table = torch.linspace(-1, 1, 256)
    of_blocks = torch.stack([block.abs().max() for block in less.split(64)])
    spread = of_blocks.repeat_interleave(64)[: len(less)]
    elements = (less / spread * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)
    written = {"absmax": elements, "nested_absmax": of_blocks, "nested_quant_map": table}
    facts = {"nested_blocksize": 64, "nested_dtype": "float32", "nested_offset": offset.item()}
    return written, table[elements.long()] * spread + offset, facts


def of_8_bits(weight: Tensor) -> tuple[Tensors, Tensor]:
    largest = weight.abs().amax(1)
    elements = (weight * (127 / largest[:, None])).round().to(torch.int8)
    written = {"weight": elements, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return written, elements.float() * largest[:, None] * 7.874015718698502e-3


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fields(**changes: Any) -> dict[str, Any]:
    """As transformers writes them."""
    return {
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": ["lm_head", "multi_modal_projector"],
        "llm_int8_threshold": 6.0,
        "load_in_4bit": True,
        "load_in_8bit": False,
        "quant_method": "bitsandbytes",
        **changes,
    }


BITSANDBYTES: dict[str, Format] = {
    "nf4": (_fields(), of_4_bits("nf4")),
    "nf4, nested": (_fields(bnb_4bit_use_double_quant=True), of_4_bits("nf4", nested=True)),
    "fp4": (_fields(bnb_4bit_quant_type="fp4"), of_4_bits("fp4", 128, dtype=torch.float16)),
    "fp4 in fp32, nested": (
        _fields(bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage="float32"),
        of_4_bits("fp4", 256, nested=True, dtype=torch.float32, storage=torch.float32),
    ),
    "int8": (_fields(load_in_4bit=False, load_in_8bit=True, bnb_4bit_quant_type="fp4"), of_8_bits),
}
