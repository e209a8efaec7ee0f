"""Random LoRA adapters in PEFT's format, made within a second from a model's config.json, for benchmarks with many.

    python -m loadtest.random_adapters MODEL OUT --count 64 --rank 16

MODEL is a folder with a config.json, or the name of a shape in loadtest/shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from loadtest.model_shapes import read_shape

ALL_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_SHARE = 0.1
"""Size of an adapter's output relative to its linear's, about: enough to change answers without breaking them."""


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    try:
        shape = _config(args.model)
        folders = make_adapters(shape, args.out, args.count, args.rank, args.target_modules, args.dtype, args.seed)
    except (ValueError, OSError) as error:
        print(f"random_adapters: {error}", file=sys.stderr)
        return 2
    print(*folders, sep="\n")
    return 0


def make_adapters(
    shape: Mapping[str, Any],
    out: Path,
    count: int,
    rank: int,
    targets: Sequence[str] = ALL_LINEARS,
    dtype: str = "bfloat16",
    seed: int = 0,
) -> list[Path]:
    """Makes or overwrites the folders adapter-0, adapter-1 ... in `out`, and returns them. shape: a model's
    config.json. The same seed and number give the same weights. Raises ValueError for a target that the model's
    linears do not have, and for a bad rank or count."""
    sizes = linear_sizes(shape)
    unknown = sorted(set(targets) - set(sizes))
    if unknown or not targets:
        raise ValueError(f"target modules are some of {', '.join(sizes)}, not {', '.join(unknown) or 'none'}")
    if rank < 1 or count < 0:
        raise ValueError(f"rank must be at least 1 and count at least 0, not {rank} and {count}")
    folders = [out / f"adapter-{number}" for number in range(count)]
    for number, folder in enumerate(folders):
        random = torch.Generator().manual_seed(seed * 1_000_003 + number)
        tensors: dict[str, Tensor] = {}
        for layer in range(int(shape["num_hidden_layers"])):
            for target in targets:
                block = "mlp" if target in ("gate_proj", "up_proj", "down_proj") else "self_attn"
                name = f"base_model.model.model.layers.{layer}.{block}.{target}"
                num_outputs, num_inputs = sizes[target]
                # A linear's weights have variance 1 / num_inputs. With these scales B @ A is `_SHARE` times as large.
                a = torch.randn(rank, num_inputs, generator=random) * num_inputs**-0.5
                b = torch.randn(num_outputs, rank, generator=random) * (_SHARE * rank**-0.5)
                tensors[f"{name}.lora_A.weight"] = a.to(getattr(torch, dtype))
                tensors[f"{name}.lora_B.weight"] = b.to(getattr(torch, dtype))
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(_adapter_config(rank, targets), indent=2) + "\n")
    return folders


def linear_sizes(shape: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """A layer's linears: name -> (outputs, inputs)."""
    hidden, intermediate = int(shape["hidden_size"]), int(shape["intermediate_size"])
    num_heads = int(shape["num_attention_heads"])
    head_dim = int(shape.get("head_dim") or hidden // num_heads)
    query, key_value = num_heads * head_dim, int(shape.get("num_key_value_heads") or num_heads) * head_dim
    return {
        "q_proj": (query, hidden),
        "k_proj": (key_value, hidden),
        "v_proj": (key_value, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (intermediate, hidden),
        "up_proj": (intermediate, hidden),
        "down_proj": (hidden, intermediate),
    }


def _adapter_config(rank: int, targets: Sequence[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
        "inference_mode": True,
    }


def _config(model: str) -> Mapping[str, Any]:
    folder = Path(model)
    if not folder.is_dir():
        return read_shape(model)
    content: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return content


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.random_adapters", description="Make random adapters.")
    parser.add_argument("model", help="a model folder, or the name of a shape in loadtest/shapes")
    parser.add_argument("out", type=Path, help="folder in which adapter-0, adapter-1 ... are made")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--target-modules", nargs="+", default=ALL_LINEARS, metavar="NAME", help="default: all linears")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
