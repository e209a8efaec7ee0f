"""What pydantic finds wrong, told in our words: the first field at fault, at its deepest place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.api.calls.wire_parsing import parse
from service.errors import InvalidRequest
from service.protocol.chat import ChatRequest
from service.protocol.completions import CompletionRequest

COMPLETION = {"model": "m", "prompt": "x"}


def refusal(shape: type[Any], body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        parse(shape, body)
    return refused.value


def test_what_fits_is_taken_with_fields_that_nobody_knows() -> None:
    fields = parse(CompletionRequest, {**COMPLETION, "colour": "red"})
    assert (fields.prompt, fields.model_extra) == ("x", {"colour": "red"})


def test_a_missing_field_has_a_code_of_its_own() -> None:
    error = refusal(CompletionRequest, {"model": "m"})
    assert (error.param, error.code, error.message) == ("prompt", "missing_required_parameter", "prompt is required.")


def test_a_field_of_several_types_is_refused_once() -> None:
    error = refusal(CompletionRequest, {**COMPLETION, "stop": [5]})
    assert (error.param, error.message) == ("stop", "stop must be a string or a list of strings.")


def test_the_first_field_at_fault_is_the_one_that_is_named() -> None:
    assert refusal(CompletionRequest, {**COMPLETION, "n": "a", "seed": "b"}).param in ("n", "seed")
    assert refusal(CompletionRequest, {"model": 5, "n": "a"}).param == "model"


@pytest.mark.parametrize("messages", [[0] * 1000, [{"role": "user", "content": [0] * 1000}]])
def test_the_first_of_many_that_do_not_fit_ends_the_search(messages: list[Any]) -> None:
    with pytest.raises(ValidationError) as found:
        ChatRequest.model_validate({"model": "m", "messages": messages})
    assert found.value.error_count() <= 3


def test_a_key_of_the_clients_own_is_told_cut_short() -> None:
    error = refusal(CompletionRequest, {**COMPLETION, "logit_bias": {"x" * 1000: "y"}})
    assert error.param == "logit_bias." + "x" * 64
    assert len(error.message) < 150


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": [{"type": 5}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], "messages[1].content"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
    ],
)
def test_the_way_to_a_field_inside_is_told(messages: list[dict[str, Any]], param: str) -> None:
    assert refusal(ChatRequest, {"model": "m", "messages": messages}).param == param
