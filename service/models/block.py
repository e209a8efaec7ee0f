"""What every architecture's layer offers. The model above it uses nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from service.layers.layer import Layer
from service.layers.linear import NamedLinear
from service.layers.weight_storage import Destination


class Block(Layer, ABC):
    """Tensor names here are relative to the layer: without its number in the checkpoint and what precedes it."""

    @abstractmethod
    def linears(self) -> Sequence[NamedLinear]:
        """The linears that adapters may change."""

    @property
    @abstractmethod
    def is_row_invariant(self) -> bool:
        """As in CausalLM, apart from the products."""

    @abstractmethod
    def checkpoint_tensors(self) -> dict[str, Destination]:
        """As in CausalLM, for this layer only."""
