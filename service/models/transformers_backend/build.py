"""From a model folder to a transformers model without memory, and to a ModelConfig of its shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from service.errors import ModelLoadError
from service.models.config_fields import read_json, token_ids
from service.models.model_config import CheckpointDtype, ModelConfig
from service.models.transformers_backend.attention import IMPLEMENTATION, AttentionCall, CurrentStep, register_attention
from service.models.transformers_backend.experts import register_experts
from service.models.transformers_backend.model import TransformersModel
from service.models.transformers_backend.probe import first_sentence, probe
from service.models.transformers_backend.refusals import check_calls, check_config, check_modules


class BuiltModel(NamedTuple):
    config: ModelConfig
    model: TransformersModel


def build_with_transformers(folder: Path) -> BuiltModel:
    """Built on the meta device. Raises ModelLoadError naming what would not be computed correctly."""
    config = _read(folder)
    check_config(config)
    register_attention()
    register_experts()
    model = _meta_model(config)
    check_modules(model)
    current = CurrentStep(model.base_model)
    made = probe(model.base_model, current)
    text = model.config.get_text_config()
    check_calls(text, made.calls)
    shape = _model_config(model, made.calls)
    with torch.device("meta"):
        built = TransformersModel(model, current, made)
        _check_head(built, shape)
    _check_step(built, shape)
    return BuiltModel(shape, built)


def _check_head(model: TransformersModel, shape: ModelConfig) -> None:
    try:
        model.compute_logits(torch.empty(1, shape.hidden_size))
    except Exception as fault:  # it is others' code: anything may come
        raise ModelLoadError(
            f"config.json: architecture {shape.architecture!r} is not supported: its head depends on more than one"
            f" token's hidden state: {first_sentence(fault)}"
        ) from fault


def _check_step(model: TransformersModel, shape: ModelConfig) -> None:
    """The probe step was made by transformers' own modules, of which some are replaced by now."""
    try:
        model.try_step()
    except Exception as fault:  # it is others' code: anything may come
        raise ModelLoadError(
            f"config.json: architecture {shape.architecture!r} is not supported: with our layers in it, transformers'"
            f" {type(model.base).__name__} cannot compute a step ({first_sentence(fault)})"
        ) from fault


def _read(folder: Path) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as fault:  # it is others' code: anything may come
        if "auto_map" in read_json(folder / "config.json"):
            raise ModelLoadError(
                "config.json: auto_map: the model needs code from its own folder; such code is not run"
            ) from fault
        reason = first_sentence(fault)
        raise ModelLoadError(f"config.json: transformers cannot read it: {reason}") from fault


def _meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config,
                attn_implementation=IMPLEMENTATION,
                experts_implementation=IMPLEMENTATION,
                trust_remote_code=False,
            )
    except Exception as fault:
        reason = first_sentence(fault)
        raise ModelLoadError(f"config.json: transformers cannot build a language model from it: {reason}") from fault
    return model.eval()


def _model_config(model: PreTrainedModel, calls: Sequence[AttentionCall]) -> ModelConfig:
    """What the cache, the engine and the adapters need to know; the rest is left to transformers."""
    text = model.config.get_text_config()
    query, key = calls[0].query, calls[0].key
    size = text.hidden_size
    return ModelConfig(
        architecture=type(model).__name__,
        vocab_size=text.vocab_size,
        hidden_size=size,
        embedding_size=size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * size,
        num_layers=len(calls),
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        sliding_windows=tuple(call.window for call in calls),
        activation="silu",
        norm_eps=1e-6,
        norms_first=True,
        has_final_norm=True,
        rope=None,
        max_position_embeddings=text.max_position_embeddings,
        tie_word_embeddings=getattr(text, "tie_word_embeddings", False),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        checkpoint_dtype=_dtype_name(text),
        eos_token_ids=token_ids(text.eos_token_id),
        bos_token_id=min(token_ids(text.bos_token_id), default=None),
    )


def _dtype_name(config: PreTrainedConfig) -> CheckpointDtype:
    match config.dtype:
        case torch.bfloat16:
            return "bfloat16"
        case torch.float16:
            return "float16"
        case _:
            return "float32"
