"""Token embedding and output head, which may share one weight; learned positions."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.layers.layer import Layer
from service.layers.projection import Projection, shape_name
from service.layers.shard import Shard, vocab_share
from service.layers.tensor_parallel import TensorParallel
from service.layers.vocab_division import vocab_share_size
from service.layers.weight_storage import Destination

HEAD_NAME = "lm_head"
_HEAD_WEIGHT, _HEAD_BIAS = f"{HEAD_NAME}.weight", f"{HEAD_NAME}.bias"
"""The checkpoint names of an untied head, in all families."""


class HoldsWeight(Protocol):
    """weight [vocab_size, hidden_size]."""

    @property
    def weight(self) -> nn.Parameter: ...


class TokenEmbedding(Layer):
    """token_ids [T] int64 -> [T, hidden_size]. weight [vocab_size, hidden_size].

    ids: the vocabulary rows of this rank. For other ids it adds zeros to the ranks' sum. Weight rows after these are
    padding: they may hold anything and are never read.
    """

    weight: nn.Parameter

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.ids = range(vocab_size)
        self._vocab_size = vocab_size
        self._parallel: TensorParallel | None = None
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def shard(self, parallel: TensorParallel) -> None:
        self.ids, self._parallel = vocab_share(self._vocab_size, parallel), parallel
        self.weight = _vocab_weight(self.weight, self._vocab_size, parallel)

    def forward(self, token_ids: Tensor) -> Tensor:
        if self._parallel is None:
            return self.weight.index_select(0, token_ids)
        last = len(self.ids) - 1
        rows = token_ids - self.ids.start
        x = self.weight.index_select(0, rows.clamp(0, last))
        x.masked_fill_(((rows < 0) | (rows > last))[:, None], 0)
        return self._parallel.all_reduce(x)

    def checkpoint_tensors(self, name: str) -> dict[str, Tensor]:
        return {name: self.weight.detach()[: len(self.ids)]}

    def checkpoint_shards(self, name: str) -> dict[str, Shard]:
        return {} if self._parallel is None else {name: Shard(0, self._vocab_size, (self.ids,))}


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

    Tied to `embedding`, or with its own weight (embedding None). The embedding is not a submodule here, so that its
    weight appears once among a model's parameters. It keeps its plain weight when the head's is packed.

    ids: whose logits this rank computes; they come first in each row, followed by padding that may hold anything.
    """

    weight: nn.Parameter | None

    def __init__(self, vocab_size: int, hidden_size: int, embedding: HoldsWeight | None, *, bias: bool = False) -> None:
        super().__init__(vocab_size, hidden_size)
        self.ids = range(vocab_size)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self._tied = (embedding,)
        own = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self.weight = own if embedding is None else None
        self.bias = nn.Parameter(torch.empty(vocab_size), requires_grad=False) if bias else None

    @property
    def is_tied(self) -> bool:
        return self._tied[0] is not None

    def checkpoint_tensors(self) -> dict[str, Destination]:
        """The weight unless it is tied, and the bias if there is one."""
        tensors: dict[str, Destination] = {}
        if self.storage is not None:
            tensors |= self.storage.checkpoint_tensors((HEAD_NAME,))
        elif self.weight is not None:
            tensors[_HEAD_WEIGHT] = self.weight.detach()[: len(self.ids)]
        if self.bias is not None:
            tensors[_HEAD_BIAS] = self.bias.detach()[: len(self.ids)]
        return tensors

    def checkpoint_shards(self) -> dict[str, Shard]:
        if len(self.ids) == self.vocab_size:
            return {}
        own = ((_HEAD_WEIGHT, self.weight), (_HEAD_BIAS, self.bias))
        return {name: Shard(0, self.vocab_size, (self.ids,)) for name, tensor in own if tensor is not None}

    def shard(self, parallel: TensorParallel) -> None:
        self.ids = vocab_share(self.vocab_size, parallel)
        hidden_size = self.plain_weight.shape[1]
        self.shape_name = shape_name(vocab_share_size(self.vocab_size, parallel.size), hidden_size)
        if self.weight is not None:
            self.weight = _vocab_weight(self.weight, self.vocab_size, parallel)
        if self.bias is not None:
            share = vocab_share_size(self.vocab_size, parallel.size)
            self.bias = nn.Parameter(self.bias.new_empty(share), requires_grad=False)

    def ignored_checkpoint_names(self) -> frozenset[str]:
        """A tied head may have been saved all the same."""
        return frozenset({_HEAD_WEIGHT} if self.is_tied else ())

    @property
    def plain_weight(self) -> Tensor:
        embedding = self._tied[0]
        weight = self.weight if embedding is None else embedding.weight
        assert weight is not None, "packed: the plain weight is gone"
        return weight

    def _give_up_plain_weight(self) -> None:
        self.weight = None

    def _has_plain_weight(self) -> bool:
        return self.weight is not None


def _vocab_weight(whole: Tensor, vocab_size: int, parallel: TensorParallel) -> nn.Parameter:
    """With the same number of rows on every rank, because kernels are chosen by a weight's shape, once for all
    ranks."""
    size = vocab_share_size(vocab_size, parallel.size)
    return nn.Parameter(whole.new_empty(size, whole.shape[1]), requires_grad=False)
