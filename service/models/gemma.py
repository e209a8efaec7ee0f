"""Gemma (Gemma Team, 2024, 2024, 2025): Llama with norms that scale by 1 + w, scaled embeddings and a GELU gate.

Gemma 2 also norms the outputs of attention and MLP, and soft-caps scores and logits; every other layer has a sliding
window. Gemma 3 norms each head's query and key instead of the caps; five of six layers have a window and their own
rotary base.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.reshape_and_cache import CacheSlots
from kernels.rotary_and_cache import rotary_and_cache
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.linear import Product
from service.layers.mixture_of_experts import ExpertNames
from service.layers.offset_rms_norm import OffsetRMSNorm, ResidualOffsetRMSNorm
from service.layers.rotary import RotaryEmbedding
from service.layers.weight_storage import Destination
from service.models.gemma_config import GemmaConfig
from service.models.llama import Llama, LlamaAttention, LlamaBlock
from service.models.model_config import ModelConfig


class GemmaAttention(LlamaAttention):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        facts = _facts(config)
        self.scale, self.logit_softcap = facts.attention_scale, facts.attention_softcap
        has_norms = facts.has_head_norms
        self.query_norm = OffsetRMSNorm(config.head_dim, config.norm_eps) if has_norms else None
        self.key_norm = OffsetRMSNorm(config.head_dim, config.norm_eps) if has_norms else None

    def rotate_and_cache(self, heads: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, slots: CacheSlots) -> None:
        if self.query_norm is not None and self.key_norm is not None:
            num_turned = (heads.shape[1] + self.num_heads) // 2
            queries, keys = heads[:, : self.num_heads], heads[:, self.num_heads : num_turned]
            queries.copy_(self.query_norm(queries))
            keys.copy_(self.key_norm(keys))
        rotary_and_cache(heads, cos, sin, *cache, slots)

    def norm_tensors(self) -> dict[str, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            return {}
        return {
            "self_attn.q_norm.weight": self.query_norm.weight.detach(),
            "self_attn.k_norm.weight": self.key_norm.weight.detach(),
        }


class GemmaBlock(LlamaBlock):
    """Like LlamaBlock; with sandwich norms, the outputs of attention and MLP are normed before they join the stream."""

    def __init__(self, config: ModelConfig, attention: LlamaAttention, experts: ExpertNames | None) -> None:
        super().__init__(config, attention, experts)
        size, eps = config.hidden_size, config.norm_eps
        self.attention_norm, self.mlp_norm = ResidualOffsetRMSNorm(size, eps), ResidualOffsetRMSNorm(size, eps)
        has_more = _facts(config).has_sandwich_norms
        self.attended_norm = OffsetRMSNorm(size, eps) if has_more else None
        self.added_norm = OffsetRMSNorm(size, eps) if has_more else None

    def forward(
        self,
        x: Tensor | Product,
        residual: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        cache: LayerCache,
        inputs: AttentionInputs,
    ) -> tuple[Product | Tensor, Tensor]:
        normed, residual = self.attention_norm(x, residual)
        attended: Tensor | Product = self.attention(normed, cos, sin, cache, inputs)
        if self.attended_norm is not None:
            attended = self.attended_norm(_value(attended))
        normed, residual = self.mlp_norm(attended, inputs.narrow(residual))
        added: Tensor | Product = self.mlp(normed)
        return (added if self.added_norm is None else self.added_norm(_value(added))), residual

    def checkpoint_tensors(self) -> dict[str, Destination]:
        tensors = super().checkpoint_tensors()
        if self.attended_norm is not None and self.added_norm is not None:
            tensors["pre_feedforward_layernorm.weight"] = tensors["post_attention_layernorm.weight"]
            tensors["post_attention_layernorm.weight"] = self.attended_norm.weight.detach()
            tensors["post_feedforward_layernorm.weight"] = self.added_norm.weight.detach()
        return tensors


class Gemma(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, GemmaAttention, block=GemmaBlock)
        facts = _facts(config)
        self.norm = ResidualOffsetRMSNorm(config.hidden_size, config.norm_eps)
        self.local_rotary = None if facts.local_rope is None else RotaryEmbedding(facts.local_rope)
        self._is_local = tuple(window is not None for window in config.sliding_windows)
        self._embedding_scale = config.hidden_size**0.5
        self._logit_softcap = facts.logit_softcap

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        x, residual = self.embedding(token_ids) * self._embedding_scale if received is None else received, None
        turns = self.rotary(positions)
        local_turns = turns if self.local_rotary is None else self.local_rotary(positions)
        are_local = self._is_local[self.first_layer : self.first_layer + len(self.blocks)]
        layers = zip(self.blocks, caches, attention.by_layer(len(self.blocks)), are_local, strict=True)
        for block, cache, inputs, is_local in layers:
            x, residual = block(x, residual, *(local_turns if is_local else turns), cache, inputs)
        return self.end_of_layers(x, residual)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden)
        cap = self._logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def finish_reading(self, dtype: torch.dtype) -> None:
        super().finish_reading(dtype)
        self._embedding_scale = torch.tensor(self._embedding_scale, dtype=dtype).item()  # rounded as the weights are
        for module in self.modules():
            if isinstance(module, OffsetRMSNorm | ResidualOffsetRMSNorm):
                module.finish_reading()

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        """None: a norm's scale has more bits than the products' weights."""
        return ()


def _facts(config: ModelConfig) -> GemmaConfig:
    assert config.gemma is not None
    return config.gemma


def _value(x: Tensor | Product) -> Tensor:
    return x.value() if isinstance(x, Product) else x
