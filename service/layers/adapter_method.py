"""How a projection multiplies for requests with adapters: as it does for others, and each row's own adapter is added.

Low-rank adapters (Hu et al. 2021), many in one batch (Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023): rows of all
adapters and of none share the product with the base's weight.
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
    """Whose adapter each row has. tokens: of all tokens of a step. read: of the rows whose output is computed, in their
    order (`AttentionInputs.rows`), where the last layer has fewer; else the same."""

    tokens: TokenSlots
    read: TokenSlots


@dataclass(slots=True)
class AdapterStep:
    """What all of a model's linears are told of the step that is being launched. inputs: None: no row has an adapter.
    Engine thread."""

    inputs: AdapterInputs | None = None


@dataclass(frozen=True, slots=True)
class AdapterMethod:
    """A LinearMethod. While a step has adapters no epilogue is fused with the base's product: an adapter comes between.
    On a GPU the activation is fused with what the adapter adds.

    base: computes the base's product. tables: of this linear. reads_rows: x is of `AdapterInputs.read`. is_ordered: the
    base sums in one order, and so do the adapters; then nothing is fused in any step, as a row without adapter is to
    have the same bits beside others that have one.
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

    def add_and_norm(
        self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float, *, in_parts: bool = False
    ) -> AddedAndNormed | None:
        if self.is_ordered or self.step.inputs is not None:
            return None
        return self.base.add_and_norm(x, residual, norm_weight, eps, in_parts=in_parts)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        if self.is_ordered:
            return None
        token_slots = self._token_slots
        if token_slots is None:
            return self.base.silu_and_mul(x)
        if isinstance(x, Tensor) and not x.is_cuda:
            return None
        if len(self.tables.out_features) != 2:  # Phi's gate and up are one place, with one A and B
            return None
        shrunk = self._shrunk(x, token_slots)
        return lora_gated_expand(shrunk, token_slots, self.tables, self.base.multiply(x, is_beside=True))

    def takes_fp8(self, num_rows: int) -> bool:
        """An adapter multiplies the rows themselves."""
        return self.step.inputs is None and self.base.takes_fp8(num_rows)

    @property
    def takes_parts(self) -> bool:
        """What is known of rows and adapters is of all rows."""
        return self.step.inputs is None and self.base.takes_parts

    def ordered(self) -> AdapterMethod | None:
        base = self.base.ordered()
        return None if base is None else replace(self, base=base, is_ordered=True)

    @property
    def _token_slots(self) -> TokenSlots | None:
        """Of the rows of x; None if no row of the step has an adapter."""
        inputs = self.step.inputs
        if inputs is None:
            return None
        return inputs.read if self.reads_rows else inputs.tokens

    def _shrunk(self, x: Normed, token_slots: TokenSlots) -> Tensor:
        assert isinstance(x, Tensor), "no product before this one has left it a division"
        return lora_shrink(x, token_slots, self.tables, ordered=self.is_ordered)
