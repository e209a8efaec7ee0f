"""Small models of transformers on the meta device, with our attention."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from service.models.transformers_backend.attention import IMPLEMENTATION, register_attention
from service.models.transformers_backend.experts import register_experts
from tests.models.checkpoints import SMALL


def meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    register_attention()
    register_experts()
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=IMPLEMENTATION, experts_implementation=IMPLEMENTATION
        ).eval()


def llama_config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**SMALL, **changes})
