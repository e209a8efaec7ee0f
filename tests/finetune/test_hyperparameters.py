from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.hyperparameters import Hyperparameters


@given(num_steps=st.integers(1, 500), warmup_ratio=st.floats(0, 0.99))
def test_the_learning_rate_rises_to_its_highest_and_then_falls_and_no_step_is_wasted(
    num_steps: int, warmup_ratio: float
):
    hyperparameters = Hyperparameters(learning_rate=0.01, warmup_ratio=warmup_ratio)
    rates = [hyperparameters.learning_rate_at(step, num_steps) for step in range(1, num_steps + 1)]
    highest = rates.index(max(rates))
    assert rates[highest] == pytest.approx(0.01)
    assert min(rates) > 0
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)


@given(num_examples=st.integers(1, 300), batch_size=st.integers(1, 256), num_epochs=st.integers(1, 50))
def test_an_epoch_ends_with_a_step_of_what_is_left(num_examples: int, batch_size: int, num_epochs: int):
    hyperparameters = Hyperparameters(learning_rate=1.0, batch_size=batch_size, num_epochs=num_epochs)
    assert hyperparameters.num_steps(num_examples) == num_epochs * math.ceil(num_examples / batch_size)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", 0),
        ("alpha", 0.0),
        ("alpha", math.nan),
        ("learning_rate", 0.0),
        ("learning_rate", math.inf),
        ("num_epochs", 51),
        ("batch_size", 257),
        ("max_length", 513),
        ("weight_decay", -1.0),
        ("max_gradient_norm", 0.0),
        ("warmup_ratio", 1.0),
        ("seed", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        Hyperparameters(**{"learning_rate": 0.001, field: value})
