"""Mixtral (Jiang et al. 2024): Llama with a mixture of experts in every layer."""

from __future__ import annotations

from service.layers.mixture_of_experts import ExpertNames
from service.models.llama import Llama, LlamaAttention
from service.models.model_config import ModelConfig

_NAMES = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


class Mixtral(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, LlamaAttention, _NAMES)
