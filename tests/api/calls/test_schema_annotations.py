from __future__ import annotations

import copy
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, SecretStr

from service.api.calls.schema_annotations import without_annotations
from tests.api.running_server import RunningServer
from tests.api.wire import CHAT, chat, error_of


class Account(BaseModel):
    home: Path
    key: SecretStr
    picture: bytes


def test_formats_of_any_text_are_left_out() -> None:
    schema = Account.model_json_schema()
    before = copy.deepcopy(schema)
    for field in without_annotations(schema)["properties"].values():
        assert field["type"] == "string"
        assert "format" not in field
    assert schema == before


def test_everything_else_stays() -> None:
    schema = {
        "properties": {"format": {"type": "string", "format": "date"}},
        "enum": [{"format": "password"}],
        "default": {"format": "path"},
        "anyOf": [{"const": {"format": "binary"}}, True],
    }
    assert without_annotations(schema) == schema


@pytest.mark.parametrize("field", ["response_format", "guided_json"])
def test_a_schema_with_them_is_honoured(server: RunningServer, http: httpx.Client, field: str) -> None:
    said = '{"home":"/root","key":"k","picture":""}'
    server.say(said)
    schema = Account.model_json_schema()
    value = {"type": "json_schema", "json_schema": {"schema": schema}} if field == "response_format" else schema
    answer = http.post(CHAT, json=chat(**{field: value})).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"] == said


def test_a_format_that_rules_texts_out_is_still_refused_by_name(http: httpx.Client) -> None:
    refusal = http.post(CHAT, json=chat(guided_json={"type": "string", "format": "byte"}))
    assert refusal.status_code == 400
    assert "byte" in error_of(refusal)["message"]
