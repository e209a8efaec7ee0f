from __future__ import annotations

from dataclasses import replace

import torch

from kernels.lora_tensors import LoraTables, TokenSlots
from service.layers.adapter_method import AdapterInputs, AdapterMethod, AdapterStep
from service.layers.linear_method import PlainMethod

IN, OUT, RANK = 8, 6, 2


class Fused(PlainMethod):
    """Says that it has every epilogue."""

    def add_and_norm(self, x, residual, norm_weight, eps):
        return "add and norm"

    def silu_and_mul(self, x):
        return "silu and mul"

    def takes_fp8(self, num_rows):
        return True


def slots_of(*slots: int) -> TokenSlots:
    return TokenSlots(torch.tensor(slots, dtype=torch.int32))


def method(step: AdapterStep, *, reads_rows: bool = False) -> tuple[AdapterMethod, torch.Tensor]:
    """With an adapter in slot 1, and the matrix that it adds to the weight."""
    pool = torch.randn(RANK * (IN + OUT))
    a, b = pool[: RANK * IN].view(RANK, IN), pool[RANK * IN :].view(RANK, OUT).T
    a_offsets = torch.tensor([[[0, 0]], [[0, IN]]])
    b_offsets = torch.tensor([[[0, 0]], [[RANK * IN, RANK * IN + OUT]]])
    ranks, scales = torch.tensor([[0], [RANK]], dtype=torch.int32), torch.tensor([[0.0], [0.5]])
    tables = LoraTables(pool, a_offsets, b_offsets, ranks, scales, (OUT,))
    return AdapterMethod(Fused(torch.randn(OUT, IN), None), tables, step, reads_rows), 0.5 * b @ a


def test_each_row_is_multiplied_by_the_weight_and_its_own_adapter():
    step = AdapterStep()
    linear, added = method(step)
    x = torch.randn(3, IN)
    base = linear.multiply(x)
    slots = slots_of(1, 0, 1)
    step.inputs = AdapterInputs(slots, slots)
    whole = linear.multiply(x)
    torch.testing.assert_close(whole[[0, 2]], (base + x @ added.T)[[0, 2]])
    assert torch.equal(whole[1], base[1])


def test_behind_the_last_attention_only_the_rows_that_are_read_are_there():
    step = AdapterStep(AdapterInputs(slots_of(1, 0, 1), slots_of(0, 1)))
    linear, added = method(step, reads_rows=True)
    x = torch.randn(2, IN)
    torch.testing.assert_close((linear.multiply(x) - linear.base.multiply(x))[1], x[1] @ added.T)


def test_epilogues_are_the_bases_while_no_row_has_an_adapter():
    step = AdapterStep()
    linear, _ = method(step)
    x, residual, weight = torch.randn(1, IN), torch.randn(1, OUT), torch.randn(OUT)
    assert linear.add_and_norm(x, residual, weight, 1e-5) == "add and norm"
    assert linear.silu_and_mul(x) == "silu and mul"
    assert linear.takes_fp8(1)
    step.inputs = AdapterInputs(slots_of(1), slots_of(1))
    assert not linear.takes_fp8(1)
    assert linear.add_and_norm(x, residual, weight, 1e-5) is None
    assert linear.silu_and_mul(x) is None


class Ordered(Fused):
    """Sums in one order as it is."""

    def ordered(self):
        return self


def test_in_one_order_nothing_is_fused_whoever_has_an_adapter():
    """A row without one would be rounded otherwise beside rows that have one."""
    step = AdapterStep()
    linear, _ = method(step)
    assert linear.ordered() is None
    ordered = replace(linear, base=Ordered(torch.randn(OUT, IN), None)).ordered()
    x = torch.randn(3, IN)
    alone = ordered.multiply(x)
    for slots in (None, slots_of(1, 0, 1)):
        step.inputs = None if slots is None else AdapterInputs(slots, slots)
        assert ordered.add_and_norm(x, torch.randn(3, OUT), torch.randn(OUT), 1e-5) is None
        assert ordered.silu_and_mul(x) is None
        assert torch.equal(ordered.multiply(x)[1], alone[1])
