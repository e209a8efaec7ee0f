"""What the compiler is not given, as it would take too long or end the process; over HTTP: test_output_form.py."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, SecretStr

from service.api.calls.schema_limits import check_grammar, check_regex_size, schema_text, without_annotations
from service.config import ApiConfig
from service.core.grammar import GrammarSpec
from service.errors import InvalidRequest
from service.structured.compilation import compile_grammar
from service.structured.vocabulary import Vocabulary, vocabulary_of
from service.text.tokenizer import Tokenizer
from tests.api.running_server import RunningServer
from tests.api.wire import CHAT, chat, error_of
from tests.text import tiny_tokenizers

CONFIG = ApiConfig(
    served_model_names=("m",), max_schema_bytes=200, max_schema_depth=8, max_enum_values=3, max_patterns_at_once=2
)
ROOMY = replace(CONFIG, max_schema_bytes=64 * 1024, max_schema_depth=64)
INT64_MIN = -(2**63)
ALLOWED: list[Any] = [
    True,
    {"type": "integer", "minimum": -9 * 10**18, "maximum": 2**63 - 1},
    {"type": "integer", "minimum": -9 * 10**18, "maximum": -9 * 10**18},
    {"const": -9 * 10**18},
    {"enum": [1, 2, 3]},
    *({"type": kind, "multipleOf": by} for kind in ("integer", "number") for by in (5, 0.01, 1e-6, 86400, 1_000_000)),
    {"type": "string", "minLength": 1, "maxLength": 2_147_483_647},
    {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 1_000_000_000},
    {"type": "string", "pattern": "^[a-z]{1,10000}$"},
    {"anyOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "c"}]},
    {"properties": {"enum": {"type": "boolean"}, "const": {"type": "null"}}},
]
REFUSED: list[tuple[Any, str]] = [
    ({"type": "integer", "minimum": INT64_MIN, "maximum": INT64_MIN + 1}, "maximum must be at least"),
    ({"type": "integer", "minimum": INT64_MIN, "exclusiveMaximum": -9.3e18}, "exclusiveMaximum must be at least"),
    ({"const": INT64_MIN}, "const must be at least"),
    ({"items": {"const": {"a": [INT64_MIN]}}}, "const must be at least"),
    ({"enum": ["a", [INT64_MIN]]}, "enum must be at least"),
    ({"enum": [1, 2, 3, 4]}, "at most 3 values"),
    ({"enum": []}, "at least one value"),
    ({"type": "integer", "multipleOf": 9_999_991}, "multipleOf may have at most 5 significant digits"),
    ({"items": {"multipleOf": 99_999.99}}, "multipleOf may have at most 5 significant digits"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "c"}]}, "at most 2 patterns"),
    (
        {"items": {"items": {"items": {"items": {"items": {"items": {"items": {"items": {}}}}}}}}},
        "at most 8 levels deep",
    ),
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    return vocabulary_of(tokenizer, tokenizer.num_tokens, frozenset())


@pytest.mark.parametrize("schema", ALLOWED, ids=str)
def test_what_is_allowed_compiles(vocabulary: Vocabulary, schema: Any) -> None:
    text = schema_text(schema, "x", CONFIG)
    assert json.loads(text) == schema
    assert compile_grammar(GrammarSpec("json_schema", text, "x"), vocabulary)
    check_grammar(f"start: %json {text}", "x", CONFIG)


def test_a_lower_bound_is_the_compilers_to_refuse(vocabulary: Vocabulary) -> None:
    text = schema_text({"type": "integer", "minimum": INT64_MIN}, "x", CONFIG)
    with pytest.raises(ValueError, match="integer range"):
        compile_grammar(GrammarSpec("json_schema", text, "x"), vocabulary)


@pytest.mark.parametrize(("schema", "word"), REFUSED, ids=str)
def test_a_schema_is_refused_also_within_a_grammar(schema: Any, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        schema_text(schema, "x", CONFIG)
    with pytest.raises(InvalidRequest, match=word):
        check_grammar(f'start: "a" %json\n{json.dumps(schema)} "b"', "x", CONFIG)


@pytest.mark.parametrize("depth", [300, 100_000])
def test_a_schema_deeper_than_any_encoder_goes(depth: int) -> None:
    nested: object = {}
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="at most 8 levels deep"):
        schema_text(nested, "x", CONFIG)


def test_sizes() -> None:
    with pytest.raises(InvalidRequest, match="200 bytes"):
        schema_text({"const": "x" * 200}, "x", CONFIG)
    with pytest.raises(InvalidRequest, match="200 bytes"):
        check_grammar("x" * 201, "x", CONFIG)
    with pytest.raises(InvalidRequest, match="4096 bytes"):
        check_regex_size("x" * 4097, "x", CONFIG)


def test_what_is_no_json_is_left_to_the_compiler() -> None:
    check_grammar('start: "%json" | %json {"const": -9223372036854775808', "x", CONFIG)


def test_a_grammar_nested_too_deeply() -> None:
    deep = ApiConfig(served_model_names=("m",), max_schema_bytes=200_000)
    with pytest.raises(InvalidRequest, match="at most 64 levels deep"):
        check_grammar("start: %json " + "[" * 100_000, "x", deep)


def test_what_a_keyword_holds_is_held_to_it_however_deep() -> None:
    for name in ("maximum", "const", "enum"):
        value: Any = [INT64_MIN]
        for _ in range(20):
            value = [{"allOf": value}]
        with pytest.raises(InvalidRequest, match=f"{name} must be at least"):
            schema_text({"properties": {"a": {name: value}}}, "p", ROOMY)


def test_patterns_are_counted_within_each_allof() -> None:
    def joined(count: int) -> dict[str, Any]:
        return {"allOf": [{"pattern": "a"}] * count}

    most = CONFIG.max_patterns_at_once
    assert schema_text({"anyOf": [joined(most), joined(most)], "pattern": "a"}, "p", CONFIG)
    with pytest.raises(InvalidRequest, match="allOf may join at most"):
        schema_text({"anyOf": [joined(most), {"items": joined(most + 1)}]}, "p", CONFIG)
    with pytest.raises(InvalidRequest, match="allOf may join at most"):
        schema_text({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": joined(most), "b": joined(1)}}, "p", CONFIG)


def test_a_grammar_may_have_few_places_that_only_look_like_a_schema() -> None:
    check_grammar("start: /%json,/ " * 10, "p", ROOMY)
    with pytest.raises(InvalidRequest, match="at most 16 %json that no JSON follows"):
        check_grammar("start: /%json,/ " * 17, "p", ROOMY)


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
