"""Quantized experts (an `ExpertWeight`, kernels/grouped_product.py) in the form that a CPU's loops multiply by
(kernels/loops/few_rows_linear.py), one expert at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu_loops import FewRowsLinear, cpu_loops
from kernels.grouped_product import MXFP4, PLAIN, ExpertWeight
from kernels.mxfp4 import unpack_scales
from kernels.quantized_weight import QuantizedWeight


class ExpertPanels(NamedTuple):
    """bias: None, or [E, N] in bf16. num_features: N. form: PLAIN, whose tile configs are used."""

    linears: Sequence[FewRowsLinear]
    bias: Tensor | None
    num_features: int
    form: int = PLAIN

    @property
    def num_bytes(self) -> int:
        return sum(linear.num_bytes for linear in self.linears)

    def product(self, expert: int, rows: Tensor) -> Tensor:
        """rows [T, K] in bf16 -> [T, N]."""
        return self.linears[expert](rows, None if self.bias is None else self.bias[expert])


ExpertWeights = ExpertWeight | ExpertPanels


def expert_panels(weight: ExpertWeight) -> ExpertPanels | None:
    """weight: quantized; it is copied. None if there are no loops for it."""
    loops = cpu_loops()
    if loops is None or weight.form == PLAIN or weight.scales is None:
        return None
    linears = list[FewRowsLinear]()
    for expert, (values, scales) in enumerate(zip(weight.values, weight.scales, strict=True)):
        zeros = None if weight.zeros is None else weight.zeros[expert]
        linear = (
            loops.few_rows_mxfp4(values, unpack_scales(scales, weight.num_inputs))
            if weight.form == MXFP4
            else loops.few_rows_linear(QuantizedWeight(values, scales, zeros, torch.bfloat16))
        )
        if linear is None:
            return None
        linears.append(linear)
    return ExpertPanels(linears, weight.bias, weight.values.shape[1])
