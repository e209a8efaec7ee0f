"""Multi-head attention without rotary positions (Vaswani et al. 2017), as in OPT and GPT-2."""

from __future__ import annotations

from torch import Tensor

from kernels.ordered_attention_decode import takes_heads
from kernels.reshape_and_cache import reshape_and_cache
from service.layers.attention import AttentionInputs, LayerCache, paged_attention
from service.layers.layer import Layer
from service.layers.linear import Linear
from service.layers.tensor_parallel import TensorParallel
from service.models.attention_shard import shard_attention
from service.models.model_config import ModelConfig


class MultiHeadAttention(Layer):
    """x [T, hidden_size] -> [N, hidden_size]: the rows whose output is computed (AttentionInputs). Writes all tokens'
    keys and values to the cache.

    qkv_features: output features of the checkpoint's query, key and value matrices: three of them, or one merged.
    """

    def __init__(self, config: ModelConfig, *qkv_features: int) -> None:
        super().__init__()
        assert sum(qkv_features) == 3 * config.hidden_size
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.qkv = Linear(config.hidden_size, *qkv_features, bias=config.qkv_bias)
        self.output = Linear(config.hidden_size, config.hidden_size, bias=config.output_bias)

    def shard(self, parallel: TensorParallel) -> None:
        num_heads = self.num_heads
        self.num_heads = shard_attention(self.qkv, self.output, num_heads, num_heads, self.head_dim, parallel)

    def forward(self, x: Tensor, cache: LayerCache, inputs: AttentionInputs) -> Tensor:
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.num_heads, self.head_dim).unbind(1)
        reshape_and_cache(key, value, *cache, inputs.slots)
        return self.output(paged_attention(query, cache, inputs, self.scale))

    def is_row_invariant(self, like: Tensor) -> bool:
        """Whether a token's attention gets the same bits as it would alone: on a GPU. like: has the weights' dtype and
        device."""
        return takes_heads(like.device, like.dtype, self.num_heads, self.num_heads, self.head_dim)
