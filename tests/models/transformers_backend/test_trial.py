"""How a small copy is called."""

from __future__ import annotations

import torch
from torch import nn

from service.models.transformers_backend.probe import ModuleCall
from service.models.transformers_backend.trial import SIZE, call_as, is_close, random_rotary, small_copy


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other, self.factor = nn.Linear(2, 2), nn.Linear(2, 2), 3.0

    def forward(self, hidden_states, position_embeddings=None, position_ids=None, mask=None):
        assert position_ids is None or not position_ids.is_meta
        return self.factor * self.inner(hidden_states), position_embeddings


def test_a_copy_has_other_children_and_the_module_keeps_its_own():
    module, child = Kept(), nn.Linear(SIZE, SIZE)
    inner = module.inner
    trial = small_copy(module, {"inner": child})
    assert trial.inner is child and trial.other is module.other and module.inner is inner


@torch.no_grad()
def test_it_is_called_as_the_module_was():
    trial, meta = small_copy(Kept(), {"inner": nn.Linear(SIZE, SIZE)}), torch.empty(1, 3, 2, device="meta")
    x, rotary = torch.randn(1, 3, SIZE), random_rotary(4)
    named = {"position_embeddings": (meta, meta), "position_ids": meta, "mask": None}
    for call in (ModuleCall((meta,), named), ModuleCall((), {"hidden_states": meta, **named})):
        made = call_as(trial, call, x, rotary)
        assert isinstance(made, tuple) and made[1] is rotary
        assert is_close(made[0], 3 * trial.inner(x))


def test_it_is_not_called_with_what_has_no_value():
    trial, meta = small_copy(Kept(), {"inner": nn.Linear(SIZE, SIZE)}), torch.empty(3, device="meta")
    x = torch.randn(1, 3, SIZE)
    assert call_as(trial, ModuleCall((meta,), {"mask": [meta]}), x, None) is None
    assert call_as(trial, ModuleCall((meta,), {"unknown": 1}), x, None) is None, "an error of its own"


def test_close_is_within_rounding_of_the_largest():
    x = torch.randn(5)
    assert is_close(x * (1 + 1e-6), x)
    assert not is_close(x * 1.01, x) and not is_close(x[:4], x) and not is_close(None, x)
