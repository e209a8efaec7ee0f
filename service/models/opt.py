"""OPT (Zhang et al. 2022): GPT-3's block with ReLU. The 350M model norms after each part and has smaller embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import OutputHead, PositionEmbedding, TokenEmbedding
from service.layers.layer_norm import ResidualLayerNorm
from service.layers.linear import Linear, NamedLinear, linear_tensors
from service.layers.mlp import Mlp
from service.layers.pipeline_stage import is_last
from service.layers.weight_storage import Destination
from service.models.block import Block
from service.models.causal_lm import CausalLM
from service.models.model_config import ModelConfig
from service.models.multi_head_attention import MultiHeadAttention

_POSITION_OFFSET = 2


class OptBlock(Block):
    """(x, residual) -> (x, residual): what the block adds to the stream, and the stream before that.

    If norms come last, x is the stream itself and there is no residual.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norms_first = config.norms_first
        self.attention_norm = ResidualLayerNorm(size, config.norm_eps)
        self.attention = MultiHeadAttention(config, size, size, size)
        self.mlp_norm = ResidualLayerNorm(size, config.norm_eps)
        self.mlp = Mlp(size, config.intermediate_size, config.activation, bias=config.mlp_bias)

    def forward(
        self, x: Tensor, residual: Tensor | None, cache: LayerCache, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor | None]:
        if self.norms_first:
            x, residual = self.attention_norm(x, residual)
            x = self.attention(x, cache, inputs)
            x, residual = self.mlp_norm(x, inputs.narrow(residual))
            return self.mlp(x), residual
        x, _ = self.attention_norm(self.attention(x, cache, inputs), inputs.narrow(x))
        x, _ = self.mlp_norm(self.mlp(x), x)
        return x, None

    def linears(self) -> Sequence[NamedLinear]:
        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return (
            NamedLinear(qkv, self.attention.qkv, reads_rows=False),
            NamedLinear(("self_attn.out_proj",), self.attention.output),
            NamedLinear(("fc1",), self.mlp.up),
            NamedLinear(("fc2",), self.mlp.down),
        )

    @property
    def is_row_invariant(self) -> bool:
        """Only on a GPU: a CPU uses torch's norms and activations, which may round a row differently beside others."""
        return self.attention.is_row_invariant(self.attention_norm.weight)

    def checkpoint_tensors(self) -> dict[str, Destination]:
        return {
            **self.attention_norm.checkpoint_tensors("self_attn_layer_norm"),
            **self.mlp_norm.checkpoint_tensors("final_layer_norm"),
            **linear_tensors(self.linears()),
        }


class Opt(CausalLM):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, embedding_size = config.hidden_size, config.embedding_size
        self.hidden_size = size
        self.embedding = TokenEmbedding(config.vocab_size, embedding_size)
        self.positions = PositionEmbedding(config.max_position_embeddings, size, _POSITION_OFFSET)
        self.project_in = Linear(embedding_size, size) if embedding_size != size else None
        self.blocks = nn.ModuleList(OptBlock(config) for _ in range(config.num_layers))
        self.norm = ResidualLayerNorm(size, config.norm_eps) if config.has_final_norm else None
        self.project_out = Linear(size, embedding_size) if embedding_size != size else None
        tied = self.embedding if config.tie_word_embeddings else None
        self.head = OutputHead(config.vocab_size, embedding_size, tied)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        x, residual = self._embed(token_ids, positions) if received is None else received, None
        for block, cache, inputs in zip(self.blocks, caches, attention.by_layer(len(self.blocks)), strict=True):
            x, residual = block(x, residual, cache, inputs)
        if is_last(self.stage) and self.norm is not None:
            x, _ = self.norm(x, residual)
        elif residual is not None:
            x = x + residual
        return x

    def _embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        if self.project_in is not None:
            x = self.project_in(x)
        return x + self.positions(positions)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        return self.head(hidden)

    def tensors_before_layers(self) -> Mapping[str, Destination]:
        table: dict[str, Destination] = {"model.decoder.embed_positions.weight": self.positions.weight.detach()}
        if self.project_in is not None:
            table |= self.project_in.checkpoint_tensors("model.decoder.project_in")
        return table

    def tensors_behind_layers(self) -> Mapping[str, Destination]:
        table: dict[str, Destination] = {}
        if self.project_out is not None:
            table |= self.project_out.checkpoint_tensors("model.decoder.project_out")
        if self.norm is not None:
            table |= self.norm.checkpoint_tensors("model.decoder.final_layer_norm")
        return table

    @property
    def ends(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("embedding", "positions", "project_in"), ("norm", "project_out", "head")

    @property
    def layer_prefix(self) -> str:
        return "model.decoder.layers."

    @property
    def embedding_name(self) -> str:
        return "model.decoder.embed_tokens.weight"

    @property
    def optional_prefix(self) -> str:
        """Checkpoints of the larger models hold only the stack below the head."""
        return "model."

    def ignored_checkpoint_names(self) -> frozenset[str]:
        """The format's version, and a tied head that was saved all the same."""
        return frozenset({"model.decoder.version"}) | self.ignored_head_names()
