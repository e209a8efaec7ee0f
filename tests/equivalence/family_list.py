"""The families in docs/models.md's table, each with a random checkpoint in transformers' own format."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 400,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,  # far from ties: argmax does not hang on the last bit
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
)
_EXPERTS: Mapping[str, Any] = MappingProxyType(
    {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
)
_ROUTED: Mapping[str, Any] = MappingProxyType(
    {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
    }
)
_LATENT: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
    }
)
_UNGATED: Mapping[str, Any] = MappingProxyType(
    {"vocab_size": 400, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
)
_LAYER_KINDS = ["sliding_attention", "full_attention"]
_VISION: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
)


@dataclass(frozen=True, slots=True)
class Family:
    """name: as users know it. config, model: transformers' classes, as `model_type` and class name. changes: to the
    common small sizes. text: for a model with vision, the changes to its text part. refusal: part of the
    message with which it is refused; None: it is served."""

    name: str
    model_type: str
    config: str
    model: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] | None = None
    plain: bool = False
    refusal: str | None = None

    def configuration(self) -> PreTrainedConfig:
        changes = {**(_UNGATED if self.plain else _SIZES), **self.changes}
        if self.text is not None:
            changes = {**self.changes, "text_config": {**_SIZES, **self.text}, "vision_config": dict(_VISION)}
        return _of(self.model_type, "configuration", self.config)(**changes)

    def random_model(self, seed: int = 0) -> PreTrainedModel:
        """fp32 on the CPU. Norms and biases are not ones and zeros."""
        torch.manual_seed(seed)
        model = _of(self.model_type, "modeling", self.model)(self.configuration()).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            if getattr(
                model.config.get_text_config(), "tie_word_embeddings", False
            ):  # else each token would repeat itself
                model.get_input_embeddings().weight.mul_(0.1)
        return model

    def save(self, folder: Path, seed: int = 0) -> Path:
        self.random_model(seed).save_pretrained(folder)
        return folder


def _of(model_type: str, kind: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model_type}.{kind}_{model_type}"), name)


def _dense(name: str, model_type: str, prefix: str, **changes: Any) -> Family:
    return Family(name, model_type, f"{prefix}Config", f"{prefix}ForCausalLM", changes)


def _plain(name: str, model_type: str, prefix: str, model: str = "", **changes: Any) -> Family:
    return Family(name, model_type, f"{prefix}Config", model or f"{prefix}ForCausalLM", changes, plain=True)


def _refused(name: str, model_type: str, prefix: str, why: str, **changes: Any) -> Family:
    return Family(name, model_type, f"{prefix}Config", f"{prefix}ForCausalLM", changes, refusal=why)


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: Sequence[Family] = (
    _dense("Llama 3.1, 3.2, 3.3", "llama", "Llama", rope_parameters=_LLAMA3),
    _dense("Yi, TinyLlama", "llama", "Llama"),
    _dense("SmolLM2", "llama", "Llama", tie_word_embeddings=True),
    _dense("Mistral 7B v0.1", "mistral", "Mistral", sliding_window=37),
    _dense("Mistral 7B v0.3, Nemo", "mistral", "Mistral", sliding_window=None, head_dim=32),
    _dense("Qwen2.5", "qwen2", "Qwen2", tie_word_embeddings=True),
    _dense("R1-Distill-Qwen", "qwen2", "Qwen2"),
    _dense("Qwen3", "qwen3", "Qwen3", head_dim=32, tie_word_embeddings=True),
    _plain("GPT-2", "gpt2", "GPT2", "GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=512),
    _plain("OPT", "opt", "OPT", hidden_size=64, word_embed_proj_dim=64, ffn_dim=96, num_hidden_layers=2,
           num_attention_heads=4, max_position_embeddings=512, init_std=0.2),
    _dense("Gemma", "gemma", "Gemma", head_dim=16),
    _dense("Gemma 2", "gemma2", "Gemma2", head_dim=16, sliding_window=37, query_pre_attn_scalar=24,
           layer_types=_LAYER_KINDS),
    Family("Gemma 3 (text)", "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM",
           {"head_dim": 16, "sliding_window": 37, "query_pre_attn_scalar": 24, "layer_types": _LAYER_KINDS}),
    _dense("Phi-3", "phi3", "Phi3", sliding_window=37),
    _dense("Phi-4", "phi3", "Phi3"),
    _dense("Phi-4-mini", "phi3", "Phi3", tie_word_embeddings=True, original_max_position_embeddings=512,
           rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                            "original_max_position_embeddings": 512, "factor": 1.0,
                            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}),
    _plain("Phi-2", "phi", "Phi", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
           max_position_embeddings=512),
    _dense("SmolLM3", "smollm3", "SmolLM3", no_rope_layers=[1, 0]),
    _dense("Granite 3", "granite", "Granite", embedding_multiplier=3.0, attention_multiplier=0.3,
           residual_multiplier=0.7, logits_scaling=1.7),
    _dense("OLMo", "olmo", "Olmo"),
    _dense("OLMo 2", "olmo2", "Olmo2"),
    _dense("OLMo 3", "olmo3", "Olmo3", sliding_window=37, layer_types=_LAYER_KINDS),
    _dense("GLM-4-9B", "glm", "Glm", head_dim=16),
    _dense("GLM-4-0414", "glm4", "Glm4", head_dim=16),
    _dense("Ministral 8B", "ministral", "Ministral", head_dim=16, sliding_window=37,
           layer_types=_LAYER_KINDS),
    _dense("Ministral 3", "ministral3", "Ministral3"),
    _dense("Command-R", "cohere", "Cohere"),
    _dense("Command-R7B", "cohere2", "Cohere2", sliding_window=37, layer_types=_LAYER_KINDS),
    _dense("StableLM 2", "stablelm", "StableLm"),
    _dense("Starcoder2", "starcoder2", "Starcoder2", sliding_window=37),
    _dense("Nemotron (Minitron)", "nemotron", "Nemotron"),
    _dense("EXAONE 4", "exaone4", "Exaone4", sliding_window=37, layer_types=_LAYER_KINDS),
    _dense("Seed-OSS", "seed_oss", "SeedOss", head_dim=16),
    _dense("ERNIE 4.5", "ernie4_5", "Ernie4_5", head_dim=16),
    _dense("Hunyuan dense", "hunyuan_v1_dense", "HunYuanDenseV1", head_dim=16),
    _plain("Pythia, GPT-NeoX", "gpt_neox", "GPTNeoX", hidden_size=64, intermediate_size=96, num_hidden_layers=2,
           num_attention_heads=4, max_position_embeddings=512),
    _dense("Apertus", "apertus", "Apertus"),
    _dense("Mixtral", "mixtral", "Mixtral", num_local_experts=8, sliding_window=None),
    _dense("Qwen2-MoE", "qwen2_moe", "Qwen2Moe", **_EXPERTS, shared_expert_intermediate_size=48),
    _dense("Qwen3-MoE", "qwen3_moe", "Qwen3Moe", **_EXPERTS),
    _dense("gpt-oss", "gpt_oss", "GptOss", head_dim=16, num_local_experts=8, num_experts_per_tok=2,
           sliding_window=37, layer_types=_LAYER_KINDS),
    _dense("DeepSeek V2", "deepseek_v2", "DeepseekV2", **_ROUTED, **_LATENT),
    _dense("DeepSeek V3, R1", "deepseek_v3", "DeepseekV3", **_ROUTED, **_LATENT),
    _dense("GLM-4.5", "glm4_moe", "Glm4Moe", **_ROUTED, head_dim=16),
    _dense("OLMoE", "olmoe", "Olmoe", num_experts=8, num_experts_per_tok=2),
    _dense("Granite 3 MoE", "granitemoe", "GraniteMoe", num_local_experts=8, num_experts_per_tok=2),
    Family("Gemma 3n (text)", "gemma3n", "Gemma3nTextConfig", "Gemma3nForCausalLM",
           {"head_dim": 16, "sliding_window": 37, "layer_types": _LAYER_KINDS * 2, "num_hidden_layers": 4,
            "num_kv_shared_layers": 2, "intermediate_size": [96] * 4, "altup_num_inputs": 2, "laurel_rank": 8,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0], "vocab_size_per_layer_input": 400,
            "hidden_size_per_layer_input": 16}),
    Family("Gemma 3 (with vision)", "gemma3", "Gemma3Config", "Gemma3ForConditionalGeneration",
           text={"head_dim": 16, "sliding_window": 37, "layer_types": _LAYER_KINDS}),
    Family("Mistral Small 3 (with vision)", "mistral3", "Mistral3Config", "Mistral3ForConditionalGeneration",
           text={"model_type": "mistral", "head_dim": 16}),
    Family("Qwen2.5-VL", "qwen2_5_vl", "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
           text={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}),
    _dense("Granite 4 Micro (no hybrid)", "granitemoehybrid", "GraniteMoeHybrid", num_local_experts=0,
           layer_types=["attention", "attention"], shared_intermediate_size=96, position_embedding_type="rope",
           embedding_multiplier=2.0, attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=2.0),
    _refused("Hunyuan A13B", "hunyuan_v1_moe", "HunYuanMoEV1", "with our layers in it", num_experts=8,
             moe_topk=2, head_dim=16),
    _refused("Qwen3-Next", "qwen3_next", "Qwen3Next", "linear_attention", **_EXPERTS,
             layer_types=["linear_attention", "full_attention"]),
    _refused("LFM2", "lfm2", "Lfm2", "conv", layer_types=["conv", "full_attention"]),
    _refused("Falcon-H1", "falcon_h1", "FalconH1", "a state"),
    _refused("Mamba 2", "mamba2", "Mamba2", "a state", head_dim=16, num_heads=8, state_size=16, n_groups=2),
    _refused("Granite 4 (hybrid)", "granitemoehybrid", "GraniteMoeHybrid", "linear_attention", num_local_experts=8,
             num_experts_per_tok=2, layer_types=["mamba", "attention"]),
)  # fmt: skip
