"""A weight matrix in the form that a CPU multiplies by fastest. Plain F.linear is the twin.

oneDNN wants weights in its own blocked layout; F.linear reorders them at every call, this does it once. For few rows,
as in a decode, a compiled loop over a layout of its own is faster still (kernels/loops/few_rows_linear.py): it reads at
the memory's speed and multiplies meanwhile. On some processors it also wins for many rows. torch's functions for
oneDNN's layout are private, so they are tried before they are used. The form of each weight is chosen in
service/runner/choices/weight_forms.py. Quantized weights only use the loops: oneDNN's form would take the memory that
was saved.
"""

from __future__ import annotations

import functools
from enum import StrEnum

import torch
from torch import Tensor

from kernels.cpu_loops import FewRowsLinear, cpu_loops, loops_for
from kernels.quantized_weight import QuantizedWeight, Weight

FEW_ROWS = 32
"""Up to this many rows use the loops, if a weight has both forms."""


class WeightForm(StrEnum):
    """BOTH: few rows use the loops, others oneDNN."""

    PLAIN = "plain"
    ONEDNN = "onednn"
    LOOPS = "loops"
    BOTH = "both"


class PackedWeight:
    """`packed(x, bias)` is F.linear(x, weight, bias), for inference, with oneDNN's form, the loops' form, or both.

    num_inputs, num_bytes: of the weight that it was made from.
    """

    __slots__ = ("_loops", "_onednn", "num_bytes", "num_inputs")

    def __init__(self, onednn: Tensor | None, loops: FewRowsLinear | None, num_inputs: int, num_bytes: int) -> None:
        self._onednn = onednn
        self._loops = loops
        self.num_inputs = num_inputs
        self.num_bytes = num_bytes

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._loops is not None and (self._onednn is None or 0 < x.shape[0] <= FEW_ROWS):
            return self._loops(x, bias)
        assert self._onednn is not None
        return _onednn_linear(x, self._onednn, bias)

    @property
    def form(self) -> WeightForm:
        if self._loops is None:
            return WeightForm.ONEDNN
        return WeightForm.LOOPS if self._onednn is None else WeightForm.BOTH

    def keep(self, form: WeightForm) -> None:
        """Drop what this form does not need."""
        if form is WeightForm.ONEDNN:
            self._loops = None
        if form is WeightForm.LOOPS:
            self._onednn = None

    def by_form(self, form: WeightForm) -> PackedWeight:
        """The same weight in only one of its forms."""
        alone = PackedWeight(self._onednn, self._loops, self.num_inputs, self.num_bytes)
        alone.keep(form)
        return alone


def pack_weight(weight: Weight, form: WeightForm) -> PackedWeight | None:
    """The weight in this form; without the loops if they do not support it. None if the weight cannot be packed (a GPU,
    another dtype, a torch without oneDNN), or if PLAIN is asked for.

    A quantized weight that `stays_quantized` is always packed for the loops; if it has a NaN it is made plain.
    """
    if isinstance(weight, QuantizedWeight):
        loops = cpu_loops()
        panels = None if loops is None else loops.few_rows_linear(weight)
        if panels is not None:
            return PackedWeight(None, panels, weight.shape[1], weight.nbytes)
        return pack_weight(weight.dequantized(), WeightForm.ONEDNN)
    if form is WeightForm.PLAIN or weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    plain = weight.detach()
    loops = None if form is WeightForm.ONEDNN else loops_for(plain)
    panels = None if loops is None else loops.few_rows_linear(plain)
    onednn = None if form is WeightForm.LOOPS and panels is not None else _pack(plain)
    return PackedWeight(onednn, panels, plain.shape[1], plain.nbytes)


def stays_quantized(num_outputs: int, num_inputs: int, dtype: torch.dtype, *, is_int8: bool = False) -> bool:
    """Whether a CPU multiplies x of dtype by such a quantized weight directly, without making it plain."""
    loops = cpu_loops() if dtype is torch.bfloat16 else None
    if loops is None:
        return False
    return (loops.takes_int8 if is_int8 else loops.takes_weight)(num_outputs, num_inputs)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU run packed linears in `dtype`."""
    if dtype not in (torch.bfloat16, torch.float32):
        return False
    try:
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight, x = torch.eye(16, dtype=dtype), torch.ones(2, 16, dtype=dtype)
        return torch.equal(_onednn_linear(x, _pack(weight), None), x)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    return packed


def _onednn_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y
