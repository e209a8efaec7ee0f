"""Token embedding and output head, whose weights may be one; learned positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.layers.layer import Layer
from service.layers.projection import Projection

_HEAD_NAME = "lm_head.weight"
"""The name that a head with a weight of its own has in the checkpoints of every family."""


class TokenEmbedding(Layer):
    """token_ids [T] int64 -> [T, hidden_size]. weight [vocab_size, hidden_size]."""

    weight: nn.Parameter

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.weight.index_select(0, token_ids)


class PositionEmbedding(Layer):
    """positions [T] int64 -> [T, hidden_size]: row `position + offset` of weight [num_positions + offset, hidden_size].

    offset: OPT keeps two rows for padding.
    """

    weight: nn.Parameter

    def __init__(self, num_positions: int, hidden_size: int, offset: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_positions + offset, hidden_size), requires_grad=False)
        self._offset = offset

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(positions + self._offset if self._offset else positions, self.weight)


class OutputHead(Projection):
    """hidden [N, hidden_size] -> logits [N, vocab_size], in hidden's dtype.

    Tied to `embedding`, or with a weight of its own (embedding None). The embedding is not a submodule here, so
    its weight appears once among a model's parameters. It keeps its plain weight when the head's is packed.
    """

    weight: nn.Parameter | None

    def __init__(self, vocab_size: int, hidden_size: int, embedding: TokenEmbedding | None) -> None:
        super().__init__(vocab_size, hidden_size)
        self._tied = (embedding,)
        own = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self.weight = own if embedding is None else None
        self.bias = None

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Nothing when tied."""
        return {} if self.weight is None else {_HEAD_NAME: self.weight.detach()}

    def ignored_checkpoint_names(self) -> frozenset[str]:
        """A tied head that was saved all the same."""
        return frozenset({_HEAD_NAME} if self.weight is None else ())

    @property
    def plain_weight(self) -> Tensor:
        embedding = self._tied[0]
        weight = self.weight if embedding is None else embedding.weight
        assert weight is not None, "packed: the plain weight is gone"
        return weight

    def _give_up_plain_weight(self) -> None:
        self.weight = None
