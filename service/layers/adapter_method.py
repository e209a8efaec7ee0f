"""How a projection multiplies for requests with adapters: as it does for others, and each row's own adapter is added.

Low-rank adapters (Hu et al. 2021), many in one batch (Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023): rows of all
adapters and of none share the product with the base's weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kernels.lora_expand import lora_expand
from kernels.lora_shrink import lora_shrink
from kernels.lora_tensors import LoraTables, TokenSlots
from service.layers.linear_method import AddedAndNormed, LinearChoice, LinearMethod, Normed


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
    """A LinearMethod. While a step has adapters no epilogue is fused with the product: an adapter comes between.

    base: computes the base's product. tables: of this linear. reads_rows: x is of `AdapterInputs.read`.
    """

    base: LinearMethod
    tables: LoraTables
    step: AdapterStep
    reads_rows: bool

    @property
    def choice(self) -> LinearChoice:
        return self.base.choice

    def multiply(self, x: Normed) -> Tensor:
        y = self.base.multiply(x)
        inputs = self.step.inputs
        if inputs is not None:
            assert isinstance(x, Tensor), "no product before this one has left it a division"
            token_slots = inputs.read if self.reads_rows else inputs.tokens
            lora_expand(lora_shrink(x, token_slots, self.tables), token_slots, self.tables, y)
        return y

    def add_and_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        return None if self.step.inputs is not None else self.base.add_and_norm(x, residual, norm_weight, eps)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        return None if self.step.inputs is not None else self.base.silu_and_mul(x)
