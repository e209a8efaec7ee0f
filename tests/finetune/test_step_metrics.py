from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.training import StepReport
from service.finetune.step_metrics import (
    MAX_STEP_EVENTS,
    as_csv,
    checkpoint_metrics,
    is_told,
    step_event,
    step_metrics,
)

PLAIN = StepReport(3, 0.5, 0.75, 20, 0.001, 1.5)
VALIDATED = PLAIN._replace(valid_loss=0.6, valid_accuracy=0.7)


@given(num_steps=st.integers(1, 10**6))
def test_events_are_bounded_and_the_last_step_has_one(num_steps: int):
    told = (
        sum(is_told(step, num_steps) for step in range(1, num_steps + 1))
        if num_steps < 10**5
        else -(-num_steps // -(-num_steps // MAX_STEP_EVENTS))
    )
    assert told <= MAX_STEP_EVENTS + 1
    assert is_told(num_steps, num_steps)
    assert num_steps > MAX_STEP_EVENTS or told == num_steps


def test_an_event_says_what_was_measured():
    assert step_event(PLAIN, 9).message == "Step 3/9: training loss=0.5000"
    event = step_event(VALIDATED, 9)
    assert (event.type, event.message) == ("metrics", "Step 3/9: training loss=0.5000, validation loss=0.6000")
    assert event.data is not None
    assert event.data["valid_mean_token_accuracy"] == 0.7


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_in_json_is_left_out(value: float):
    assert "gradient_norm" not in step_metrics(PLAIN._replace(gradient_norm=value))


def test_a_checkpoint_has_openais_names():
    assert checkpoint_metrics(VALIDATED) == {
        "step": 3,
        "train_loss": 0.5,
        "train_mean_token_accuracy": 0.75,
        "valid_loss": 0.6,
        "valid_mean_token_accuracy": 0.7,
        "full_valid_loss": 0.6,
        "full_valid_mean_token_accuracy": 0.7,
    }
    assert set(checkpoint_metrics(PLAIN)) == {"step", "train_loss", "train_mean_token_accuracy"}


def test_the_file_has_a_line_a_step():
    assert as_csv([step_metrics(PLAIN), step_metrics(VALIDATED)]).decode().splitlines() == [
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        "3,0.5,0.75,,",
        "3,0.5,0.75,0.6,0.7",
    ]
