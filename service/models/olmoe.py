"""OLMoE (Muennighoff et al. 2024): experts in every layer; one norm over all heads of a query, and one over those of a
key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.reshape_and_cache import CacheSlots
from service.layers.attention import LayerCache
from service.layers.rms_norm import RMSNorm
from service.layers.shard import Shard, even_share, kv_head_share
from service.layers.tensor_parallel import TensorParallel
from service.models.llama import Llama, LlamaAttention
from service.models.model_config import ModelConfig


class OlmoeAttention(LlamaAttention):
    """If each rank has some of the heads, the ranks sum their mean squares: two numbers per token."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.query_norm = RMSNorm(config.num_heads * config.head_dim, config.norm_eps)
        self.key_norm = RMSNorm(config.num_kv_heads * config.head_dim, config.norm_eps)
        self._num_kv_heads = config.num_kv_heads
        self._parallel: TensorParallel | None = None
        self._shards: dict[str, Shard] = {}

    def shard(self, parallel: TensorParallel) -> None:
        shares = even_share(self.num_heads, parallel), kv_head_share(self._num_kv_heads, parallel)
        super().shard(parallel)
        self._parallel = parallel
        for name, norm, share in zip(self.norm_tensors(), (self.query_norm, self.key_norm), shares, strict=True):
            own = range(share.start * self.head_dim, share.stop * self.head_dim)
            self._shards[name] = Shard(0, len(norm.weight), (own,))
            norm.weight = nn.Parameter(norm.weight.new_empty(len(own)), requires_grad=False)

    def rotate_and_cache(self, heads: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, slots: CacheSlots) -> None:
        norms = self.query_norm, self.key_norm
        sizes = [len(norm.weight) for norm in norms]
        parts = heads.flatten(1)[:, : sum(sizes)].split(sizes, 1)
        if self._parallel is None:
            normed = [norm(part) for norm, part in zip(norms, parts, strict=True)]
        else:
            normed = _normed_over_ranks(parts, norms, self._parallel)
        for part, values in zip(parts, normed, strict=True):
            part.copy_(values)
        super().rotate_and_cache(heads, cos, sin, cache, slots)

    def norm_tensors(self) -> dict[str, Tensor]:
        return {
            "self_attn.q_norm.weight": self.query_norm.weight.detach(),
            "self_attn.k_norm.weight": self.key_norm.weight.detach(),
        }

    def norm_shards(self) -> dict[str, Shard]:
        return self._shards


def _normed_over_ranks(parts: tuple[Tensor, ...], norms: tuple[RMSNorm, ...], parallel: TensorParallel) -> list[Tensor]:
    """parts [T, own]: rows whose other heads are on other ranks, the same number on each; a key's heads may be on
    several ranks. Rounded as in kernels/rms_norm.py."""
    squares = torch.stack([part.float().square().mean(1) for part in parts], 1)
    means = parallel.all_reduce(squares) / parallel.size
    return [
        (part.float() * torch.rsqrt(means[:, index, None] + norm.eps) * norm.weight.float()).to(part.dtype)
        for index, (part, norm) in enumerate(zip(parts, norms, strict=True))
    ]


class Olmoe(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, OlmoeAttention)
