"""Llama (Touvron et al. 2023): pre-norm blocks of grouped-query attention with rotary positions and a gated MLP.

Mistral 7B (Jiang et al. 2023) adds a sliding window to attention, Qwen2 (Yang et al. 2024) biases of query, key and
value; checkpoints of Phi-3 and Phi-4 (Abdin et al. 2024) have these tensors merged already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

from torch import Tensor, nn

from kernels.cpu_loops import loops_for
from kernels.ordered_attention_decode import takes_heads
from kernels.reshape_and_cache import CacheSlots
from kernels.rotary_and_cache import rotary_and_cache
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.attention import AttentionInputs, LayerCache, paged_attention
from service.layers.embedding import OutputHead, TokenEmbedding
from service.layers.gated_mlp import GatedMlp
from service.layers.layer import Layer
from service.layers.linear import Linear, NamedLinear, Product, linear_tensors
from service.layers.linear_method import Normed
from service.layers.mixture_of_experts import USUAL_NAMES, ExpertNames, MixtureOfExperts
from service.layers.pipeline_stage import is_last
from service.layers.rms_norm import ResidualRMSNorm
from service.layers.rotary import RotaryEmbedding
from service.layers.shard import Shard
from service.layers.tensor_parallel import TensorParallel
from service.layers.weight_storage import Destination
from service.models.attention_shard import shard_attention
from service.models.block import Block
from service.models.causal_lm import CausalLM
from service.models.model_config import ModelConfig


class LlamaAttention(Layer):
    """x [T, hidden_size] -> [N, hidden_size]: the rows whose output is computed (AttentionInputs)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.sinks: nn.Parameter | None = None
        self.logit_softcap: float | None = None
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.sliding_window = config.sliding_windows[layer]
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        sizes = query_size, kv_size, kv_size
        parts = (sum(sizes),) if config.is_merged else sizes
        self.qkv = Linear(config.hidden_size, *parts, bias=config.qkv_bias)
        self.output = Linear(query_size, config.hidden_size, bias=config.output_bias)

    def forward(self, x: Normed, cos: Tensor, sin: Tensor, cache: LayerCache, inputs: AttentionInputs) -> Product:
        projected = self.qkv(x)
        heads = projected.view(projected.shape[0], -1, self.head_dim)
        self.rotate_and_cache(heads, cos, sin, cache, inputs.slots)
        queries = heads[:, : self.num_heads]
        attended = paged_attention(
            queries, cache, inputs, self.scale, self.sliding_window, self.logit_softcap, sinks=self.sinks
        )
        return Product(self.output, attended)

    def is_row_invariant(self, like: Tensor) -> bool:
        """Whether a token's attention gets the same bits as it would alone. like: has the weights' dtype and device."""
        loops = loops_for(like)
        by_loops = loops is not None and loops.takes_head_dim(self.head_dim)
        by_kernels = takes_heads(like.device, like.dtype, self.num_heads, self.num_kv_heads, self.head_dim)
        return self.sinks is None and (by_loops or by_kernels)

    @property
    def num_kv_heads(self) -> int:
        return (sum(self.qkv.out_features) // self.head_dim - self.num_heads) // 2

    def rotate_and_cache(self, heads: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, slots: CacheSlots) -> None:
        """heads [T, num_heads + 2 * num_kv_heads, head_dim]: rotate queries and keys in place, and cache keys and
        values."""
        rotary_and_cache(heads, cos, sin, *cache, slots)

    def shard(self, parallel: TensorParallel) -> None:
        num_heads, head_dim = self.num_heads, self.head_dim
        self.num_heads = shard_attention(self.qkv, self.output, num_heads, self.num_kv_heads, head_dim, parallel)

    def norm_tensors(self) -> dict[str, Tensor]:
        """The parameters that are not in a linear, by their names in a checkpoint."""
        return {}

    def norm_shards(self) -> dict[str, Shard]:
        """Those of `norm_tensors` of which a rank has only a part, and which part."""
        return {}


class LlamaBlock(Block):
    """(x, residual) -> (x, residual): what the block adds to the stream, and the stream before that.

    experts: their names if the layer has a mixture of experts; None: it has an MLP.
    """

    def __init__(self, config: ModelConfig, attention: LlamaAttention, experts: ExpertNames | None) -> None:
        super().__init__()
        self._is_merged = config.is_merged
        self.attention_norm = ResidualRMSNorm(config.hidden_size, config.norm_eps)
        self.attention = attention
        self.mlp_norm = ResidualRMSNorm(config.hidden_size, config.norm_eps)
        self.mlp: GatedMlp | MixtureOfExperts
        if experts is None or config.experts is None:
            self.mlp = GatedMlp(
                config.hidden_size,
                config.intermediate_size,
                config.activation,
                bias=config.mlp_bias,
                is_merged=config.is_merged,
            )
        else:
            self.mlp = MixtureOfExperts(config.hidden_size, config.experts, experts)

    def forward(
        self,
        x: Tensor | Product,
        residual: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        cache: LayerCache,
        inputs: AttentionInputs,
    ) -> tuple[Product | Tensor, Tensor]:
        normed, residual = self.attention_norm(x, residual, self.attention.qkv)
        attended = self.attention(normed, cos, sin, cache, inputs)
        gate_up = self.mlp.gate_up if isinstance(self.mlp, GatedMlp) else None
        normed, residual = self.mlp_norm(attended, inputs.narrow(residual), gate_up)
        return self.mlp(normed), residual

    def linears(self) -> Sequence[NamedLinear]:
        """Only attention's if the layer has experts: no adapter changes a router or an expert."""
        qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
        if self._is_merged:
            qkv, gate_up = ("self_attn.qkv_proj",), ("mlp.gate_up_proj",)
        attention = (
            NamedLinear(qkv, self.attention.qkv, reads_rows=False),
            NamedLinear(("self_attn.o_proj",), self.attention.output),
        )
        if isinstance(self.mlp, MixtureOfExperts):
            return attention
        return (
            *attention,
            NamedLinear(gate_up, self.mlp.gate_up),
            NamedLinear(("mlp.down_proj",), self.mlp.down),
        )

    @property
    def is_row_invariant(self) -> bool:
        """True if all is computed by a CPU's loops or our GPU kernels, which compute each row, or token and head, by
        itself. Anything else is torch's (experts, sinks; on a CPU activations other than SiLU, and other norms), which
        may round a row differently beside others."""
        like, mlp = self.attention_norm.weight, self.mlp
        return self.attention.is_row_invariant(like) and isinstance(mlp, GatedMlp) and mlp.is_row_invariant(like)

    def checkpoint_tensors(self) -> dict[str, Destination]:
        return {
            "input_layernorm.weight": self.attention_norm.weight.detach(),
            "post_attention_layernorm.weight": self.mlp_norm.weight.detach(),
            **self.attention.norm_tensors(),
            **linear_tensors(self.linears()),
            **(self.mlp.checkpoint_tensors() if isinstance(self.mlp, MixtureOfExperts) else {}),
        }


class Llama(CausalLM):
    """attention, block: make the parts of one layer; architectures that differ only in these use this class. experts:
    the names of the experts, if config.json has any. vocab_size: also on a stage without embedding and head."""

    def __init__(
        self,
        config: ModelConfig,
        attention: Callable[[ModelConfig, int], LlamaAttention] = LlamaAttention,
        experts: ExpertNames = USUAL_NAMES,
        block: Callable[[ModelConfig, LlamaAttention, ExpertNames | None], LlamaBlock] = LlamaBlock,
    ) -> None:
        super().__init__()
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        self.embedding = TokenEmbedding(config.vocab_size, config.hidden_size)
        assert config.rope is not None
        self.rotary = RotaryEmbedding(config.rope)
        has_experts = config.experts.layers if config.experts is not None else (False,) * config.num_layers
        self.blocks = nn.ModuleList(
            block(config, attention(config, i), experts if has_experts[i] else None) for i in range(config.num_layers)
        )
        self.norm = ResidualRMSNorm(config.hidden_size, config.norm_eps)
        tied = self.embedding if config.tie_word_embeddings else None
        self.head = OutputHead(config.vocab_size, config.hidden_size, tied)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        x, residual = self.embedding(token_ids) if received is None else received, None
        cos, sin = self.rotary(positions)
        for block, cache, inputs in zip(self.blocks, caches, attention.by_layer(len(self.blocks)), strict=True):
            x, residual = block(x, residual, cos, sin, cache, inputs)
        return self.end_of_layers(x, residual)

    def end_of_layers(self, x: Tensor | Product, residual: Tensor | None) -> Tensor:
        """Turn the last block's output into what `forward` returns."""
        # The product is not fused with the norm here: only some of the normed rows go on to the head.
        x = x.value() if isinstance(x, Product) else x
        if not is_last(self.stage):
            return x if residual is None else x + residual
        hidden, _ = self.norm(x, residual)
        return hidden

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        """None at a mixture of experts: its output is a sum, not a product, and its input has another reader, the
        router."""
        if self.parallel.size > 1:
            return ()  # the ranks' sum is fused with the norm instead
        blocks = [block for block in self.blocks if isinstance(block, LlamaBlock)]
        into_mlp = [
            AddNormFusion(block.attention.output, block.mlp_norm, block.mlp.gate)
            for block in blocks
            if isinstance(block.mlp, GatedMlp)
        ]
        into_attention = [
            AddNormFusion(block.mlp.down, then.attention_norm, then.attention.qkv)
            for block, then in pairwise(blocks)
            if isinstance(block.mlp, GatedMlp)
        ]
        return (*into_mlp, *into_attention)

    @property
    def optional_prefix(self) -> str:
        """A checkpoint without the head, as embedding models have it, has no prefix."""
        return "model."

    def mixtures(self) -> Sequence[tuple[str, MixtureOfExperts]]:
        return [
            (prefix, block.mlp)
            for prefix, block in self.named_blocks()
            if isinstance(block, LlamaBlock) and isinstance(block.mlp, MixtureOfExperts)
        ]

    def tensors_behind_layers(self) -> Mapping[str, Destination]:
        return {"model.norm.weight": self.norm.weight.detach()}

    def checkpoint_shards(self) -> dict[str, Shard]:
        shards = super().checkpoint_shards()
        for prefix, block in self.named_blocks():
            if self.parallel.size > 1 and isinstance(block, LlamaBlock):
                experts = block.mlp.checkpoint_shards() if isinstance(block.mlp, MixtureOfExperts) else {}
                of_block = block.attention.norm_shards() | experts
                shards |= {prefix + name: shard for name, shard in of_block.items()}
        return shards

    def checkpoint_places(self, stored: Collection[str]) -> dict[str, Destination]:
        """Also handles checkpoints that have all experts' weights in one tensor."""
        places = super().checkpoint_places(stored)
        for before, mixture in self.mixtures():
            for name, (tensor, replaced) in mixture.substitutes().items():
                if (full := before + name) in stored:
                    places[full] = tensor
                    for other in replaced:
                        del places[before + other]
        return places

    def ignored_checkpoint_names(self) -> frozenset[str]:
        """Frequency tables, which early checkpoints hold, and a tied head that was saved all the same."""
        layers = range(self.first_layer, self.first_layer + len(self.blocks))
        tables = frozenset(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in layers)
        return tables | self.ignored_head_names()
