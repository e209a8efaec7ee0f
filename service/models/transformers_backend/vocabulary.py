"""The embedding and the output head of a transformers model, whose weights may be one."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from service.layers.embedding import OutputHead
from service.layers.tensor_parallel import TensorParallel
from service.layers.vocab_division import vocab_share_size


class Vocabulary:
    """The head is ours. The embedding stays transformers', and is whole on every rank that has it."""

    def __init__(self, model: PreTrainedModel) -> None:
        theirs, embedding = model.get_output_embeddings(), cast(nn.Embedding, model.get_input_embeddings())
        is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
        self._tied = _TiedWeight(embedding) if is_tied else None
        self._num_ids = theirs.out_features
        self.head = OutputHead(theirs.out_features, theirs.in_features, self._tied, bias=theirs.bias is not None)

    def shard(self, parallel: TensorParallel) -> None:
        """Have the head compute only this rank's logits. Called before there is memory."""
        if self._tied is not None:
            size = vocab_share_size(self._num_ids, parallel.size)
            self._tied.divide(range(size * parallel.rank, size * (parallel.rank + 1)), size * parallel.size)
        self.head.shard(parallel)

    def without_padding(self, tensor: Tensor) -> Tensor:
        """The part of a model's tensor that a checkpoint holds."""
        is_padded = self._tied is not None and self._tied.is_weight(tensor)
        return tensor[: self._num_ids] if is_padded else tensor


class _TiedWeight:
    """The part of the embedding's weight that the head multiplies by: all of it or, with several ranks, this rank's
    ids, followed by padding after the embedding's last id."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self._embedding = embedding
        self._kept: range | None = None

    def divide(self, kept: range, num_padded: int) -> None:
        whole = self._embedding.weight
        self._embedding.weight = nn.Parameter(whole.new_empty(num_padded, whole.shape[1]), requires_grad=False)
        self._kept = kept

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether it is the embedding's weight, with padding."""
        return self._kept is not None and tensor is self._embedding.weight

    @property
    def weight(self) -> nn.Parameter:
        whole = self._embedding.weight
        if self._kept is None and isinstance(whole, nn.Parameter):
            return whole
        assert self._kept is not None
        return nn.Parameter(whole.detach()[self._kept.start : self._kept.stop], requires_grad=False)
