"""A weight that rows are multiplied by, and the method that does it: what `Linear` and `OutputHead` are."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from service.layers.layer import Layer
from service.layers.linear_method import LinearMethod, Normed, PackedMethod, PlainMethod
from service.layers.packed_weight import PackedWeight, pack_weight


class Projection(Layer, ABC):
    """x [T, in_features] -> x W^T + b [T, out_features]. Until `use` or `pack`, by the plain weight as it is."""

    bias: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self._method: LinearMethod | None = None

    def forward(self, x: Normed) -> Tensor:
        return self.method.multiply(x)

    @property
    def method(self) -> LinearMethod:
        return self._method or PlainMethod(self.plain_weight, self.bias)

    @property
    @abstractmethod
    def plain_weight(self) -> Tensor:
        """[out_features, in_features]. Gone once it is packed."""

    def use(self, method: LinearMethod) -> None:
        """Multiply by this method from now on; it holds the weight that `plain_weight` is now."""
        self._method = method

    def pack(self, in_two_forms: bool) -> PackedWeight | None:
        """Where a CPU has a faster form of the weight, take it and give up the plain one: inference only. Returns the
        packed form, if there is one. in_two_forms: memory may hold both forms."""
        packed = pack_weight(self.plain_weight, in_two_forms)
        if packed is not None:
            self.use(PackedMethod(packed, self.bias))
            self._give_up_plain_weight()
        return packed

    @abstractmethod
    def _give_up_plain_weight(self) -> None: ...
