"""Which implementation computes a model, ours or transformers': decided from its config.json, without torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Literal

from service.errors import ModelLoadError
from service.models.model_config import architecture_of, is_native, parse_model_config, quantization_of
from service.models.text_part import text_fields

WantedImplementation = Literal["auto", "native", "transformers"]
Implementation = Literal["native", "transformers"]

_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Suffixes of transformers' names for models that generate text."""

_WITH_STATES = frozenset({"conv", "hybrid", "linear_attention", "mamba", "mamba2", "recurrent"})
"""Kinds of layers with a state besides keys and values, as checkpoints name them."""

_ALWAYS_WITH_STATES = frozenset(
    {"bamba", "falcon_h1", "falcon_mamba", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax"}
    | {"nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm"}
    | {"zamba", "zamba2"}
)
"""By `model_type`, for models whose config.json need not name its layers' kinds."""


def choose_implementation(
    fields: Mapping[str, object], wanted: WantedImplementation, quantization: str | None = None
) -> Implementation:
    """Decide from config.json's fields. auto: ours if we have the architecture, else transformers' if it generates
    text. quantization: the setting. Raises ModelLoadError naming the field that is not supported. For transformers'
    modules, more may turn out to be unsupported when they are built."""
    architecture = architecture_of(fields)
    is_known = is_native(architecture) or text_fields(fields) is not None
    is_generator = architecture.endswith(_GENERATORS)
    if wanted == "native" or (wanted == "auto" and (is_known or not is_generator)):
        parse_model_config(fields, quantization)
        return "native"
    quantization_of(architecture, fields, quantization)
    _check_memory(architecture, fields)
    if importlib.util.find_spec("transformers") is None:
        raise ModelLoadError(
            f"config.json: architecture {architecture!r} needs the transformers library, which is not installed:"
            " pip install 'headrace[transformers]'"
        )
    return "transformers"


def _check_memory(architecture: str, fields: Mapping[str, object]) -> None:
    """Raises ModelLoadError early, as far as config.json tells, for what transformers' modules would be refused for
    later, after they are imported and the weights fetched (transformers_backend/refusals.py)."""
    text = fields.get("text_config")
    kinds = (text if isinstance(text, Mapping) else fields).get("layer_types")
    others = sorted(_WITH_STATES.intersection(map(str, kinds if isinstance(kinds, list) else ())))
    if fields.get("is_encoder_decoder") is True:
        raise _refused(architecture, "it is an encoder-decoder model; only decoders are supported")
    if others:
        kind = ", ".join(others)
        raise _refused(architecture, f"its layers of kind {kind} do not keep keys and values of all tokens")
    if fields.get("model_type") in _ALWAYS_WITH_STATES:
        raise _refused(architecture, "its layers keep a state besides keys and values")


def _refused(architecture: str, why: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: architecture {architecture!r} is not supported: {why}")
