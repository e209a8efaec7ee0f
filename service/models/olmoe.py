"""OLMoE (Muennighoff et al. 2024): experts in every layer; norms over all heads of a query, and of a key, together."""

from __future__ import annotations

from torch import Tensor

from kernels.reshape_and_cache import CacheSlots
from service.layers.attention import LayerCache
from service.layers.rms_norm import RMSNorm
from service.models.llama import Llama, LlamaAttention
from service.models.model_config import ModelConfig


class OlmoeAttention(LlamaAttention):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.query_norm = RMSNorm(config.num_heads * config.head_dim, config.norm_eps)
        self.key_norm = RMSNorm(config.num_kv_heads * config.head_dim, config.norm_eps)

    def rotate_and_cache(self, heads: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, slots: CacheSlots) -> None:
        begin, flat = 0, heads.flatten(1)
        for norm in (self.query_norm, self.key_norm):
            part = flat[:, begin : begin + norm.weight.shape[0]]
            part.copy_(norm(part))
            begin += part.shape[1]
        super().rotate_and_cache(heads, cos, sin, cache, slots)

    def norm_tensors(self) -> dict[str, Tensor]:
        return {
            "self_attn.q_norm.weight": self.query_norm.weight.detach(),
            "self_attn.k_norm.weight": self.key_norm.weight.detach(),
        }


class Olmoe(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, OlmoeAttention)
