from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.protocol.generation import GenerationFields


def test_null_and_absent_are_the_same() -> None:
    names = [name for name in GenerationFields.model_fields if name != "model"]
    explicit = GenerationFields.model_validate({"model": "m"} | dict.fromkeys(names))
    assert explicit == GenerationFields.model_validate({"model": "m"})


@pytest.mark.parametrize(
    "fields",
    [
        {"n": True},
        {"n": "1"},
        {"n": 1.5},
        {"n": float("nan")},
        {"temperature": "1"},
        {"stream": 1},
        {"seed": 2.0**64},
        {"top_p": True},
    ],
)
def test_types_are_exact(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GenerationFields.model_validate({"model": "m", **fields})


def test_an_integer_may_be_written_as_a_float() -> None:
    fields = GenerationFields.model_validate({"n": 2.0, "max_tokens": 5.0, "seed": -3.0, "top_k": 1e2, "priority": 0.0})
    assert (fields.n, fields.max_tokens, fields.seed, fields.top_k, fields.priority) == (2, 5, -3, 100, 0)
    assert type(fields.n) is int


@pytest.mark.parametrize("value", [-float(2**63), float(2**64), 1e300])
def test_what_is_too_large_for_an_integer_is_told_the_limits(value: float) -> None:
    """JSON's integers beyond 64 bits come as floats."""
    with pytest.raises(ValidationError, match=r"from -9223372036854775808 to 9223372036854775807, and in digits"):
        GenerationFields.model_validate({"seed": value})


def test_whole_numbers_are_numbers() -> None:
    assert GenerationFields.model_validate({"model": "m", "temperature": 1}).temperature == 1.0


def test_unknown_fields_are_kept_apart() -> None:
    fields = GenerationFields.model_validate({"model": "m", "mood": 1, "stream_options": {"x": 2}})
    assert fields.model_extra == {"mood": 1}
    assert fields.stream_options is not None
    assert fields.stream_options.model_extra == {"x": 2}
