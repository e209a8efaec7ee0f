from __future__ import annotations

import pytest
import torch

from service.layers.linear import Linear
from service.layers.packed_weight import WeightForm, can_pack
from service.runner.choices.timer import seconds_on_cpu
from service.runner.choices.weight_forms import choose_forms


def linears(count=3):
    if not can_pack(torch.bfloat16):
        pytest.skip("this torch or this CPU has no packed linears")
    made = [Linear(128, 256) for _ in range(count)]
    for linear in made:
        linear.weight.data = torch.randn(256, 128).bfloat16()
    return made


def forms_of(made):
    return {linear.method.choice for linear in made}


def has_loops():
    [linear] = linears(1)
    return linear.pack(WeightForm.BOTH) is WeightForm.BOTH


def timed(few, many):
    """few, many: seconds that the loops take for them; oneDNN always takes 1."""

    def timer(launches):
        weight, x = launches[0].func, launches[0].args[0]
        return (few if len(x) == 1 else many) if weight.form is WeightForm.LOOPS else 1.0

    return timer


@pytest.mark.parametrize(
    ("few", "many", "form"),
    [
        (1.3, 0.1, WeightForm.ONEDNN),
        (1.1, 1.1, WeightForm.BOTH),
        (0.5, 1.0, WeightForm.BOTH),
        (0.5, 0.9, WeightForm.LOOPS),
    ],
)
def test_the_forms_that_win_stay(few, many, form):
    made, odd = linears(), Linear(128, 250)
    odd.weight.data = torch.zeros(250, 128).bfloat16()
    if not has_loops():
        pytest.skip("this machine runs no compiled loops")
    choices = choose_forms([*made, odd], timed(few, many), in_two_forms=True)
    assert choices == {"256x128": form, "250x128": WeightForm.ONEDNN}, "the loops know no such shape"
    assert forms_of(made) == {form} and forms_of([odd]) == {WeightForm.ONEDNN}


def test_without_memory_for_both_nothing_is_timed():
    made = linears()
    choices = choose_forms(made, lambda launches: pytest.fail("timed"), in_two_forms=False)
    assert choices == {"256x128": WeightForm.ONEDNN} and forms_of(made) == {WeightForm.ONEDNN}


def test_what_cannot_be_packed_stays_plain():
    linear = Linear(16, 32)
    linear.weight.data = torch.zeros(32, 16, dtype=torch.float16)
    choices = choose_forms([linear], lambda launches: pytest.fail("timed"), in_two_forms=True)
    assert choices == {"32x16": WeightForm.PLAIN} and forms_of([linear]) == {WeightForm.PLAIN}


def test_a_real_choice_is_made():
    made = linears()
    choices = choose_forms(made, seconds_on_cpu, in_two_forms=True)
    assert forms_of(made) == set(choices.values())
