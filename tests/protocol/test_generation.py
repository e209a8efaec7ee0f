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
    [{"n": True}, {"n": "1"}, {"n": 1.0}, {"temperature": "1"}, {"stream": 1}, {"seed": 2.0**64}, {"top_p": True}],
)
def test_types_are_exact(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GenerationFields.model_validate({"model": "m", **fields})


def test_whole_numbers_are_numbers() -> None:
    assert GenerationFields.model_validate({"model": "m", "temperature": 1}).temperature == 1.0


def test_unknown_fields_are_kept_apart() -> None:
    fields = GenerationFields.model_validate({"model": "m", "mood": 1, "stream_options": {"x": 2}})
    assert fields.model_extra == {"mood": 1}
    assert fields.stream_options is not None
    assert fields.stream_options.model_extra == {"x": 2}
