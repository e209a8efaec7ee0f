"""Qwen3 (Yang et al. 2025), dense: Llama with a norm over each head's query and key before they are rotated."""

from __future__ import annotations

from torch import Tensor

from kernels.reshape_and_cache import CacheSlots
from kernels.rotary_and_cache import rotary_and_cache
from service.layers.attention import LayerCache
from service.layers.rms_norm import RMSNorm
from service.models.llama import Llama, LlamaAttention
from service.models.model_config import ModelConfig


class Qwen3Attention(LlamaAttention):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps)

    def rotate_and_cache(self, heads: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, slots: CacheSlots) -> None:
        query_norm, key_norm = self.query_norm.weight, self.key_norm.weight
        rotary_and_cache(heads, cos, sin, *cache, slots, query_norm, key_norm, self.query_norm.eps)

    def norm_tensors(self) -> dict[str, Tensor]:
        return {
            "self_attn.q_norm.weight": self.query_norm.weight.detach(),
            "self_attn.k_norm.weight": self.key_norm.weight.detach(),
        }


class Qwen3(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, Qwen3Attention)
