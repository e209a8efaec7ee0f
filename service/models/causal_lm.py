"""What every architecture offers: the runner and the weight loader know a model by this only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.skinny_linear import new_arrivals
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import OutputHead
from service.layers.few_rows import compile_skinny, most_skinny_rows
from service.layers.gated_mlp import GatedMlp
from service.layers.gated_rows import choose_gated_rows
from service.layers.layer import Layer
from service.layers.linear import Linear
from service.layers.packed_weight import choose_few_rows_way
from service.layers.rotary import RotaryEmbedding
from service.layers.stream_joint import StreamJoint, choose_deferred_rows


class CausalLM(Layer, ABC):
    """Token ids to hidden states to logits, over a paged KV cache, for a flat batch of T tokens.

    Its life: constructed (on the meta device, so without memory) -> `materialize` -> weights written through
    `checkpoint_tensors` -> `prepare` -> forward.
    """

    @abstractmethod
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
    ) -> Tensor:
        """token_ids, positions [T] int64; one cache a layer, written to. Returns [T, hidden_size]."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size], rows of `forward`'s -> [N, vocab_size]."""

    @abstractmethod
    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint by its exact name, as the view of the parameter that it fills."""

    @abstractmethod
    def ignored_checkpoint_names(self) -> frozenset[str]:
        """Names that a checkpoint may hold and that are not needed."""

    def stream_joints(self) -> Sequence[Sequence[StreamJoint]]:
        """Those of the residual stream that may be computed in fewer launches, equal shapes together."""
        return ()

    @property
    def optional_prefix(self) -> str:
        """A prefix that all names of a checkpoint may lack: those of checkpoints without the output head do."""
        return ""

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Give the parameters memory; their values are undefined."""
        self.to(dtype)
        self.to_empty(device=device)

    def prepare(self, num_positions: int, device: torch.device, in_two_forms: bool = True) -> None:
        """Make ready for inference at positions below `num_positions`; no weight can be written afterwards.

        in_two_forms: on a CPU, memory may hold the weights in two forms, each fastest for another batch.
        """
        linears: list[Linear | OutputHead] = []
        for module in self.modules():
            if isinstance(module, Linear | OutputHead):
                linears.append(module)
            elif isinstance(module, RotaryEmbedding):
                module.build(num_positions, device)
        if device.type == "cuda":
            _choose_skinny_rows(linears, device)
            choose_gated_rows([module for module in self.modules() if isinstance(module, GatedMlp)])
            choose_deferred_rows(self.stream_joints())
        packed = [linear.pack(in_two_forms) for linear in linears]
        choose_few_rows_way([weight for weight in packed if weight is not None])
        self.settle()


def _choose_skinny_rows(linears: Sequence[Linear | OutputHead], device: torch.device) -> None:
    """Weights of one shape are measured together and get the same bound."""
    by_shape = defaultdict(list)
    for linear in linears:
        by_shape[linear.plain_weight.shape].append(linear)
    # One for all: they run one after the other.
    arrivals = new_arrivals(max(num_features for num_features, _ in by_shape), device)
    compile_skinny([alike[0].plain_weight for alike in by_shape.values()], arrivals)
    for alike in by_shape.values():
        most = most_skinny_rows([linear.plain_weight for linear in alike], arrivals)
        for linear in alike:
            linear.skinny_rows, linear.arrivals = most, arrivals
