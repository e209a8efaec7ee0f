"""gpt-oss (OpenAI 2025): experts in every layer, attention with sinks, a sliding window in every other layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from service.layers.mixture_of_experts import ExpertNames
from service.layers.shard import Shard, even_share
from service.layers.tensor_parallel import TensorParallel
from service.models.llama import Llama, LlamaAttention
from service.models.model_config import ModelConfig

_NAMES = ExpertNames(router="mlp.router", is_stacked=True)


class GptOssAttention(LlamaAttention):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.sinks = nn.Parameter(torch.empty(config.num_heads), requires_grad=False)

    def shard(self, parallel: TensorParallel) -> None:
        assert self.sinks is not None
        heads = even_share(self.num_heads, parallel)
        self._sinks_shard = Shard(0, self.num_heads, (heads,))
        self.sinks = nn.Parameter(self.sinks.new_empty(len(heads)), requires_grad=False)
        super().shard(parallel)

    def norm_shards(self) -> dict[str, Shard]:
        return {"self_attn.sinks": self._sinks_shard}

    def norm_tensors(self) -> dict[str, Tensor]:
        assert self.sinks is not None
        return {"self_attn.sinks": self.sinks.detach()}


class GptOss(Llama):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, GptOssAttention, _NAMES)
