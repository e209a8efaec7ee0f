from __future__ import annotations

from typing import Any

import pytest

from service.chat_client.request_fields import FieldError, RequestFields


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("temperature 0.5", 0.5),
        ("seed  7 ", 7),
        ('stop ["a", "b"]', ["a", "b"]),
        ("ignore_eos true", True),
        ("reasoning_effort low", "low"),
        ('stop "low"', "low"),
        ('logit_bias {"5": 1}', {"5": 1}),
        ("user a b c", "a b c"),
    ],
)
def test_a_value_is_json_or_else_text(text: str, value: Any):
    fields = RequestFields({"max_tokens": 5})
    told = fields.change(text)
    name = text.split()[0]
    assert fields.all() == {"max_tokens": 5, name: value}
    assert told == fields.describe(name)
    assert fields.change(name) == f"{name} is left to the server"
    assert fields.all() == {"max_tokens": 5}


@pytest.mark.parametrize("text", ["model x", "messages []", "stream false", "n 2", "tools []", "a-b 1", "1 2", "seed"])
def test_what_cannot_be_set(text: str):
    fields = RequestFields({})
    with pytest.raises(FieldError):
        fields.change(text)
    assert fields.all() == {}
