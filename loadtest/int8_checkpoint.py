"""A plain checkpoint as one of int8, in the format of compressed-tensors (int-quantized: W8A8, a scale per channel):

    python -m loadtest.int8_checkpoint MODEL_FOLDER NEW_FOLDER

Rounded to the nearest, without data, as llm-compressor's `QuantizationModifier(scheme="W8A8")` does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from loadtest.int4_checkpoint import write_quantized

_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="make an int8 checkpoint of a plain one")
    parser.add_argument("model", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    write_quantized(options.model, options.new, _rounded, _CONFIG)


def _rounded(name: str, weight: Tensor) -> dict[str, Tensor]:
    exact = weight.float()
    scales = (exact.abs().amax(1, keepdim=True) / 127.5).clamp_(min=1e-8).to(weight.dtype)
    elements = (exact / scales.float()).round_().clamp_(-128, 127).char()
    return {name: elements, f"{name}_scale": scales}


if __name__ == "__main__":
    main()
