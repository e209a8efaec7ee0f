"""A weight that rows are multiplied by, and the method that does it: the base of `Linear` and `OutputHead`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from kernels.quantized_weight import QuantizedWeight, Weight
from kernels.skinny_linear import new_arrivals
from service.errors import ConfigError
from service.layers.layer import Layer
from service.layers.linear_method import (
    KernelMethod,
    KernelRows,
    LinearChoice,
    LinearMethod,
    Normed,
    PackedMethod,
    PlainMethod,
)
from service.layers.packed_weight import WeightForm, pack_weight
from service.layers.summed_method import SummedMethod
from service.layers.tensor_parallel import TensorParallel
from service.layers.weight_storage import WeightStorage

LinearChoices = Mapping[str, LinearChoice]
"""By `Projection.shape_name`: all weights of one shape use the same choice."""


class Projection(Layer, ABC):
    """x [T, in_features] -> x W^T + b [T, out_features]. Before `use` or `pack`, with the plain weight.

    shape_name: of the weight, as OUTxIN, or of this rank's part of it; with its form if it is multiplied by quantized:
    OUTxIN-fp8. storage: what a quantized weight is read into; None for others, and once it has been read.
    """

    bias: nn.Parameter | None

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.shape_name = shape_name(out_features, in_features)
        self._method: LinearMethod | None = None
        self._own_method: LinearMethod | None = None
        self._summed_over: TensorParallel | None = None
        self._keeps_plain_weight = False
        self.storage: WeightStorage | None = None
        self._quantized: QuantizedWeight | None = None

    def forward(self, x: Normed) -> Tensor:
        return self.method.multiply(x)

    @property
    def method(self) -> LinearMethod:
        return self._method or self._summed(self.own_method)

    @property
    def own_method(self) -> LinearMethod:
        """Without the sum over ranks."""
        return self._own_method or PlainMethod(self.plain_weight, self.bias)

    def own_product(self, x: Normed) -> Tensor:
        return self.own_method.multiply(x)

    @property
    @abstractmethod
    def plain_weight(self) -> Tensor:
        """[out_features, in_features], from which methods are made. Gone once it is packed, unless it is kept."""

    @property
    def held_weight(self) -> Weight:
        """What methods are made from: the plain weight, or the quantized one in its place."""
        return self.plain_weight if self._quantized is None else self._quantized

    @property
    def is_quantized(self) -> bool:
        """Whether it multiplies by a quantized weight; known once that is loaded."""
        return self._quantized is not None

    @property
    def num_made_plain(self) -> int:
        """Elements of the plain weight still to be dequantized; the quantized form is in memory beside them."""
        return self.plain_weight.numel() if self.storage is not None and self._has_plain_weight() else 0

    def store(self, storage: WeightStorage, *, dequantized: bool) -> None:
        """Read the weight into `storage` instead of a plain tensor. dequantized: it is made plain afterwards, for a
        device that multiplies by no other form."""
        self.storage = storage
        if not dequantized:
            self.shape_name += f"-{storage.form}"
            self._give_up_plain_weight()

    def finish_reading(self, dtype: torch.dtype) -> None:
        """The weight has been read: convert it to what is multiplied by, for x of dtype."""
        if self.storage is None:
            return
        quantized = self.storage.finished(dtype)
        if self._has_plain_weight():
            self.plain_weight.data.copy_(quantized.dequantized())
        else:
            self._quantized = quantized
        self.storage = None

    def keep_plain_weight(self) -> None:
        """Keep the plain weight beside a packed form: training multiplies by it, and by its transpose."""
        self._keeps_plain_weight = True

    def use(self, method: LinearMethod) -> None:
        """Multiply with this method from now on. It holds the present `plain_weight`."""
        self._own_method = method
        self._method = self._summed(method)

    @property
    def can_order_sums(self) -> bool:
        return self._summed(self.own_method).ordered() is not None

    def order_sums(self, is_ordered: bool) -> None:
        """From now on multiply with the method's `ordered` if `can_order_sums`, or with the method itself."""
        method = self._summed(self.own_method)
        self._method = method.ordered() if is_ordered else method

    def extend(self, around: Callable[[LinearMethod], LinearMethod]) -> None:
        """From now on multiply with a method that wraps the present one."""
        self.use(around(self.own_method))

    def pack(self, form: WeightForm) -> WeightForm:
        """Convert the weight to this form, or to what a CPU supports of it, and return the form it has now. The weight
        that it was made from is dropped unless it is kept: the packed one is for inference only."""
        packed = pack_weight(self.held_weight, form)
        if packed is not None:
            self.use(PackedMethod(packed, self.bias))
            if self._quantized is not None:
                self._quantized = None
            elif not self._keeps_plain_weight:
                self._give_up_plain_weight()
        return WeightForm.PLAIN if packed is None else packed.form

    def _summed(self, method: LinearMethod) -> LinearMethod:
        return method if self._summed_over is None else SummedMethod(method, self._summed_over)

    @abstractmethod
    def _give_up_plain_weight(self) -> None: ...

    @abstractmethod
    def _has_plain_weight(self) -> bool: ...


def shape_name(out_features: int, in_features: int) -> str:
    return f"{out_features}x{in_features}"


def use_choices(projections: Iterable[Projection], choices: LinearChoices, device: torch.device) -> None:
    """Have each projection multiply as chosen for its shape. Raises ConfigError naming a weight whose form this machine
    does not support."""
    projections = list(projections)
    arrivals = new_arrivals(max(each.held_weight.shape[0] for each in projections), device)
    for each in projections:
        choice = choices[each.shape_name]
        if isinstance(choice, KernelRows):
            if not choice.fits(each.held_weight):
                raise ConfigError(
                    f"choices: linears.{each.shape_name}: {choice}: no kernel takes that many rows of this weight"
                )
            each.use(KernelMethod(each.held_weight, each.bias, arrivals, choice))
        elif each.pack(choice) is not choice:
            raise ConfigError(
                f"choices: linears.{each.shape_name}: this machine does not support form {choice} for this weight"
            )
