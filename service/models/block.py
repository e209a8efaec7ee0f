"""What every architecture's layer offers: the model above it asks for no more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from service.layers.layer import Layer
from service.layers.linear import NamedLinear
from service.layers.weight_storage import Destination


class Block(Layer, ABC):
    """Names are those behind the layer's own in a checkpoint: its number, and what stands before that."""

    @abstractmethod
    def linears(self) -> Sequence[NamedLinear]:
        """What adapters change."""

    @property
    @abstractmethod
    def is_row_invariant(self) -> bool:
        """As CausalLM's, but for the products."""

    @abstractmethod
    def checkpoint_tensors(self) -> dict[str, Destination]:
        """As CausalLM's, of this layer alone."""
