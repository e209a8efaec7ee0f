"""Model shapes without weights: folders with a config.json, for `--load-format dummy`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SHAPES = Path(__file__).parent / "shapes"

_NUM_SPECIAL_IDS = 300
"""An upper bound. In these vocabularies special ids are the highest ones, or the first three."""

LLAMA_8B = "llama-8b"
LLAMA_31_8B = "llama-3.1-8b"
"""Llama-8B with a context of 131,072 tokens."""
LLAMA_8B_W4A16 = "llama-8b-w4a16"
"""Llama-8B in int4 with groups of 128, as llm-compressor writes it."""
QWEN3_06B = "qwen3-0.6b"
QWEN3_30B_A3B = "qwen3-30b-a3b"
GPT_OSS_20B = "gpt-oss-20b"
GEMMA_3_4B = "gemma-3-4b"
LLAMA_135M = "llama-135m"
LLAMA_2_LAYERS = "llama-2-layers"
"""For CPUs: an iteration takes about the same time whatever is in it, as a decode on a GPU does."""


def shape_folder(name: str) -> Path:
    """A folder that a server can load."""
    return _SHAPES / name


def read_shape(name: str) -> Mapping[str, Any]:
    """Its config.json."""
    content: Mapping[str, Any] = json.loads((shape_folder(name) / "config.json").read_text(encoding="utf-8"))
    return content


def plain_ids_end(shape: Mapping[str, Any]) -> int:
    """Prompts are drawn from the ids 3..end, end excluded, which are ordinary text."""
    return int(shape["vocab_size"]) - _NUM_SPECIAL_IDS


def kv_bytes_per_token(shape: Mapping[str, Any], bytes_per_element: int) -> int:
    """KV cache bytes of one token, all layers."""
    return int(2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * bytes_per_element)
