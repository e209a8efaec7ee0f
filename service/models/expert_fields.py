"""Mixtures of experts from config.json. Each family has its own names for the same facts."""

from __future__ import annotations

from service.errors import ModelLoadError
from service.layers.experts_config import ExpertsConfig
from service.models.config_fields import ConfigFields

_MXFP4_GROUP = 32  # as in kernels/mxfp4.py, which imports torch


def parse_experts(architecture: str, fields: ConfigFields, num_layers: int) -> ExpertsConfig | None:
    """None for a family without experts. Raises ModelLoadError naming the field."""
    match architecture:
        case "MixtralForCausalLM":
            config = ExpertsConfig(
                layers=(True,) * num_layers,
                num_experts=fields.size("num_local_experts", 8),
                top_k=fields.size("num_experts_per_tok", 2),
                intermediate_size=fields.size("intermediate_size", 14336),
            )
        case "Qwen3MoeForCausalLM" | "Qwen2MoeForCausalLM":
            is_qwen2 = architecture == "Qwen2MoeForCausalLM"
            config = ExpertsConfig(
                layers=_sparse_layers(fields, num_layers),
                num_experts=fields.size("num_experts", fields.size("num_local_experts", 60 if is_qwen2 else 128)),
                top_k=fields.size("num_experts_per_tok", 4 if is_qwen2 else 8),
                intermediate_size=fields.size("moe_intermediate_size", 1408 if is_qwen2 else 768),
                renormalizes=fields.flag("norm_topk_prob"),
                shared_size=fields.size("shared_expert_intermediate_size", 5632) if is_qwen2 else None,
            )
        case "OlmoeForCausalLM":
            if (clip := fields.get("clip_qkv")) is not None:
                raise ModelLoadError(f"{fields.source}: clip_qkv {clip!r} is not supported, only null")
            config = ExpertsConfig(
                layers=(True,) * num_layers,
                num_experts=fields.size("num_experts", 64),
                top_k=fields.size("num_experts_per_tok", 8),
                intermediate_size=fields.size("intermediate_size", 2048),
                renormalizes=fields.flag("norm_topk_prob"),
            )
        case "GptOssForCausalLM":
            config = _gpt_oss_experts(fields, num_layers)
        case _:
            return None
    is_other = config.shared_size is not None or (config.has_bias and not config.is_mxfp4)
    if fields.get("quantization_config") is not None and is_other:
        raise ModelLoadError(
            f"{fields.source}: quantization_config is not supported for {architecture}"
            f"{', except for MXFP4' if config.has_bias else ''}; serve the unquantized checkpoint"
        )
    if config.top_k > config.num_experts:
        raise ModelLoadError(
            f"{fields.source}: num_experts_per_tok {config.top_k} exceeds the number of experts, {config.num_experts}"
        )
    return config


def _gpt_oss_experts(fields: ConfigFields, num_layers: int) -> ExpertsConfig:
    size, hidden_size = fields.size("intermediate_size", 2880), fields.size("hidden_size", 2880)
    quantization = fields.get("quantization_config")
    is_mxfp4 = isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"
    if is_mxfp4 and (size % _MXFP4_GROUP or hidden_size % _MXFP4_GROUP):
        raise ModelLoadError(
            f"{fields.source}: hidden_size {hidden_size} or intermediate_size {size} is not a multiple of"
            f" {_MXFP4_GROUP}, the size of an MXFP4 group"
        )
    return ExpertsConfig(
        layers=(True,) * num_layers,
        num_experts=fields.size("num_local_experts", 128),
        top_k=fields.size("num_experts_per_tok", fields.size("experts_per_token", 4)),
        intermediate_size=size,
        clamp_limit=fields.number("swiglu_limit", 7.0),
        clamp_alpha=fields.number("swiglu_alpha", 1.702),
        has_bias=True,
        is_mxfp4=is_mxfp4,
    )


def _sparse_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    step, plain = fields.size("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(isinstance(layer, int) for layer in plain):
        raise ModelLoadError(f"{fields.source}: mlp_only_layers must be a list of layer numbers")
    return tuple((layer + 1) % step == 0 and layer not in plain for layer in range(num_layers))
