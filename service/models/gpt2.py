"""GPT-2 (Radford et al. 2019): pre-norm blocks of multi-head attention and an MLP, learned positions, a tied head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import OutputHead, PositionEmbedding, TokenEmbedding
from service.layers.layer_norm import ResidualLayerNorm
from service.layers.linear import NamedLinear, linear_tensors
from service.layers.mlp import Mlp
from service.layers.pipeline_stage import is_last
from service.layers.shard import Shard
from service.layers.weight_storage import Destination, QuantizedRows
from service.models.block import Block
from service.models.causal_lm import CausalLM
from service.models.model_config import ModelConfig
from service.models.multi_head_attention import MultiHeadAttention


class Gpt2Block(Block):
    """(x, residual) -> (x, residual): what the block adds to the stream, and the stream before that."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = ResidualLayerNorm(config.hidden_size, config.norm_eps)
        self.attention = MultiHeadAttention(config, 3 * config.hidden_size)
        self.mlp_norm = ResidualLayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation, bias=config.mlp_bias)

    def forward(
        self, x: Tensor, residual: Tensor | None, cache: LayerCache, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        x = self.attention(x, cache, inputs)
        x, residual = self.mlp_norm(x, inputs.narrow(residual))
        return self.mlp(x), residual

    def linears(self) -> Sequence[NamedLinear]:
        return (
            NamedLinear(("attn.c_attn",), self.attention.qkv, reads_rows=False),
            NamedLinear(("attn.c_proj",), self.attention.output),
            NamedLinear(("mlp.c_fc",), self.mlp.up),
            NamedLinear(("mlp.c_proj",), self.mlp.down),
        )

    @property
    def is_row_invariant(self) -> bool:
        """Only on a GPU: a CPU uses torch's norms and activations, which may round a row differently beside others."""
        return self.attention.is_row_invariant(self.attention_norm.weight)

    def checkpoint_tensors(self) -> dict[str, Destination]:
        return {
            **self.attention_norm.checkpoint_tensors("ln_1"),
            **self.mlp_norm.checkpoint_tensors("ln_2"),
            **_transposed(linear_tensors(self.linears())),
        }


class Gpt2(CausalLM):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.embedding = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.positions = PositionEmbedding(config.max_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(Gpt2Block(config) for _ in range(config.num_layers))
        self.norm = ResidualLayerNorm(config.hidden_size, config.norm_eps)
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
        x = self.embedding(token_ids) + self.positions(positions) if received is None else received
        residual = None
        for block, cache, inputs in zip(self.blocks, caches, attention.by_layer(len(self.blocks)), strict=True):
            x, residual = block(x, residual, cache, inputs)
        if not is_last(self.stage):
            return x if residual is None else x + residual
        hidden, _ = self.norm(x, residual)
        return hidden

    def tensors_before_layers(self) -> Mapping[str, Destination]:
        return {"transformer.wpe.weight": self.positions.weight.detach()}

    def tensors_behind_layers(self) -> Mapping[str, Destination]:
        return self.norm.checkpoint_tensors("transformer.ln_f")

    def checkpoint_shards(self) -> dict[str, Shard]:
        shards = super().checkpoint_shards()
        for linears in self.block_linears():
            for name in (f"{name}.weight" for names, *_ in linears for name in names):
                if name in shards:
                    shards[name] = shards[name].transposed()
        return shards

    @property
    def ends(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("embedding", "positions"), ("norm", "head")

    @property
    def layer_prefix(self) -> str:
        return "transformer.h."

    @property
    def embedding_name(self) -> str:
        return "transformer.wte.weight"

    @property
    def optional_prefix(self) -> str:
        """The first checkpoints hold only the stack below the head."""
        return "transformer."

    def ignored_checkpoint_names(self) -> frozenset[str]:
        """Causal masks, which checkpoints of several years hold, and a tied head that was saved all the same."""
        layers = range(self.first_layer, self.first_layer + len(self.blocks))
        masks = {f"transformer.h.{i}.attn.{mask}" for i in layers for mask in ("bias", "masked_bias")}
        return frozenset(masks) | self.ignored_head_names()


def _transposed(tensors: dict[str, Destination]) -> dict[str, Destination]:
    """The original code multiplies x W: its matrices are stored [in, out]."""

    def turned(tensor: Destination) -> Destination:
        if isinstance(tensor, Tensor | QuantizedRows) and len(tensor.shape) == 2:
            return tensor.mT
        return tensor

    return {name: turned(tensor) for name, tensor in tensors.items()}
