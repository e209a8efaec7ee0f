"""How a projection multiplies for requests with adapters: the base's product for all rows, plus each row's own adapter.

Low-rank adapters (Hu et al. 2021), many in one batch (Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023): rows of all
adapters and of none share the product with the base weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from kernels.lora_expand import lora_expand
from kernels.lora_gated_expand import lora_gated_expand
from kernels.lora_shrink import lora_shrink
from kernels.lora_tensors import LoraTables, TokenSlots
from service.layers.linear_method import Activated, AddedAndNormed, LinearChoice, LinearMethod, Normed


class AdapterInputs(NamedTuple):
    """The adapter of each row. tokens: for all tokens of a step. read: for the rows whose output is computed, in their
    order (`AttentionInputs.rows`), if the last layer has fewer rows; else equal to `tokens`."""

    tokens: TokenSlots
    read: TokenSlots


@dataclass(slots=True)
class AdapterStep:
    """The adapters of the step that is being launched, shared by all linears of a model. inputs: None: no row has an
    adapter. Engine thread."""

    inputs: AdapterInputs | None = None


@dataclass(frozen=True, slots=True)
class AdapterMethod:
    """A LinearMethod. In a step with adapters no epilogue is fused with the base's product, because the adapter's part
    must be added first. On a GPU the activation is fused with that addition instead.

    base: computes the base's product. tables: of this linear. reads_rows: x has the rows of `AdapterInputs.read`.
    is_ordered: base and adapters sum in one order. Then nothing is fused in any step, so that a row without an adapter
    gets the same bits whether or not others have one.
    """

    base: LinearMethod
    tables: LoraTables
    step: AdapterStep
    reads_rows: bool
    is_ordered: bool = False

    @property
    def choice(self) -> LinearChoice:
        return self.base.choice

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        token_slots = self._token_slots
        if token_slots is None:
            return self.base.multiply(x, is_beside=is_beside)
        shrunk = self._shrunk(x, token_slots)
        y = self.base.multiply(x, is_beside=True)
        lora_expand(shrunk, token_slots, self.tables, y)
        return y

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        if self.is_ordered or self.step.inputs is not None:
            return None
        return self.base.add_and_norm(x, residual, norm_weight, eps)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        if self.is_ordered:
            return None
        token_slots = self._token_slots
        if token_slots is None:
            return self.base.silu_and_mul(x)
        if isinstance(x, Tensor) and not x.is_cuda:
            return None
        if len(self.tables.out_features) != 2:  # Phi's gate and up are one part, with one A and B
            return None
        shrunk = self._shrunk(x, token_slots)
        return lora_gated_expand(shrunk, token_slots, self.tables, self.base.multiply(x, is_beside=True))

    def takes_fp8(self, num_rows: int) -> bool:
        """Not in a step with adapters: they multiply the unrounded rows."""
        return self.step.inputs is None and self.base.takes_fp8(num_rows)

    def ordered(self) -> AdapterMethod | None:
        base = self.base.ordered()
        return None if base is None else replace(self, base=base, is_ordered=True)

    @property
    def _token_slots(self) -> TokenSlots | None:
        """The slots of x's rows; None if no row of the step has an adapter."""
        inputs = self.step.inputs
        if inputs is None:
            return None
        return inputs.read if self.reads_rows else inputs.tokens

    def _shrunk(self, x: Normed, token_slots: TokenSlots) -> Tensor:
        assert isinstance(x, Tensor), "no product before this one has left it a division"
        return lora_shrink(x, token_slots, self.tables, ordered=self.is_ordered)
