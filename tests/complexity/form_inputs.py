"""Worst inputs of what holds an output to a form: schemas, patterns, grammars, and the grammars of tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from service.api.calls.output_form import check_output_form
from service.api.calls.schema_limits import check_grammar, schema_text, without_annotations
from service.api.calls.wire_parsing import parse
from service.config import ApiConfig
from service.core.grammar import GrammarSpec
from service.protocol.completions import CompletionRequest
from service.structured.grammar_source import grammar_source
from service.text.tag_grammar import tag_grammar
from service.text.tool_calls import ToolStyle
from service.text.tool_grammar import CallableTool, CallRules, call_grammar
from tests.complexity.growth import Work, WorstInput

CONFIG = ApiConfig(served_model_names=("m",))
_SCHEMA_BYTES = CONFIG.max_schema_bytes
_ANY_SIZE = ApiConfig(served_model_names=("m",), max_schema_bytes=2**40, max_schema_depth=2**40, max_enum_values=2**40)
"""So that work beyond the limit can be measured too."""


def _schema(schema_of: Callable[[int], Any], n: int) -> Work:
    schema = schema_of(n)
    return lambda: schema_text(schema, "schema", _ANY_SIZE)


def _nested(keyword: str, n: int) -> Any:
    """As deep as may be, and at the bottom n members."""
    schema: Any = [{} for _ in range(n)]
    for _ in range(CONFIG.max_schema_depth // 2 - 2):
        schema = [{keyword: schema}]
    return {keyword: schema}


def _deep(keyword: str, n: int) -> Any:
    """Half as deep as it is long."""
    schema: Any = [{} for _ in range(4 * n)]
    for _ in range(n):
        schema = {keyword: schema}
    return schema


def _annotated(n: int) -> Work:
    schema = {"properties": {f"a{index}": {"type": "string", "format": "password"} for index in range(n)}}
    return lambda: without_annotations(schema)


def _grammar(text: str) -> Work:
    return lambda: check_grammar(text, "grammar", _ANY_SIZE)


def _form(**fields: Any) -> Work:
    wire = parse(CompletionRequest, {"model": "m", "prompt": "x", **fields})
    return lambda: check_output_form(wire, _ANY_SIZE)


def _calls(style: ToolStyle, parameters_of: Callable[[int], dict[str, Any]], n: int) -> Work:
    tool = CallableTool("f", parameters_of(n), is_strict=True)

    def work() -> None:
        with suppress(ValueError):  # too much, which is told on the way
            call_grammar(style, [tool], CallRules(must_call=True, parallel=True))

    return work


def _tag(form: Mapping[str, Any]) -> Work:
    return lambda: tag_grammar({"format": form}, CONFIG.max_stops)


def _many_tags(n: int) -> Work:
    """Beside as many triggers as there may be."""
    triggers = [f"<{index:02}" for index in range(CONFIG.max_stops)]
    content = {"type": "json_schema", "json_schema": {}}
    tags = [{"begin": triggers[index % len(triggers)], "content": content, "end": ""} for index in range(n)]
    return _tag({"type": "triggered_tags", "triggers": triggers, "tags": tags})


def _nested_tags(n: int) -> Work:
    part: dict[str, Any] = {"type": "or", "elements": [{"type": "const_string", "value": "é"}] * n}
    for _ in range(CONFIG.max_schema_depth // 2 - 3):
        part = {"type": "sequence", "elements": [part]}
    return _tag(part)


def _properties_and_definitions(n: int) -> dict[str, Any]:
    return {
        "properties": {f"a{index}": {"$ref": "#/$defs/d"} for index in range(n)},
        "$defs": {"d": {"enum": list(range(10 * n))}},
    }


def _properties_and_required(n: int) -> dict[str, Any]:
    return {"properties": {f"a{index}": {} for index in range(n)}, "required": ["a0"] * n}


def _source(spec: GrammarSpec) -> Work:
    return lambda: grammar_source(spec, {})


FORM_INPUTS = [
    *(
        WorstInput(
            f"schema: {keyword} as deep as may be",
            ("api/calls/schema_limits.py",),
            partial(_schema, partial(_nested, keyword)),
            100,
            _SCHEMA_BYTES // 3,
            "loop",
        )
        for keyword in ("allOf", "enum", "const", "anyOf")
    ),
    *(
        WorstInput(
            f"schema: {keyword} in each other",
            ("api/calls/schema_limits.py",),
            partial(_schema, partial(_deep, keyword)),
            50,
            CONFIG.max_schema_depth - 2,
            "loop",
        )
        for keyword in ("allOf", "enum")
    ),
    WorstInput(
        "schema: a sequence of allOf",
        ("api/calls/schema_limits.py",),
        partial(_schema, lambda n: {"anyOf": [{"allOf": [{"$ref": "#"}]}] * n}),
        200,
        _SCHEMA_BYTES // 24,
        "loop",
    ),
    WorstInput("schema: formats that say nothing", ("api/calls/schema_limits.py",), _annotated, 1_000, 1_500, "loop"),
    WorstInput(
        "grammar: %json everywhere",
        ("api/calls/schema_limits.py",),
        lambda n: _grammar("%json" * (n // 5)),
        32_000,
        _SCHEMA_BYTES,
        "loop",
    ),
    WorstInput(
        "grammar: %json in strings of JSON",
        ("api/calls/schema_limits.py",),
        lambda n: _grammar('%json ["' * (n // 8)),
        32_000,
        _SCHEMA_BYTES,
        "loop",
    ),
    WorstInput(
        "choice: many",
        ("api/calls/output_form.py",),
        lambda n: _form(choice=["x"] * n),
        2_000,
        CONFIG.max_enum_values,
        "loop",
    ),
    WorstInput(
        "schema as text",
        ("api/calls/output_form.py",),
        lambda n: _form(guided_json="[" * n),
        16_000,
        _SCHEMA_BYTES,
        "loop",
    ),
    WorstInput(
        "tools, Hermes: many properties",
        ("text/tool_grammar.py",),
        partial(_calls, ToolStyle.HERMES, _properties_and_required),
        500,
        3_000,
        "loop",
    ),
    WorstInput(
        "tools, pythonic: many properties and a large definition",
        ("text/tool_grammar.py",),
        partial(_calls, ToolStyle.PYTHONIC, _properties_and_definitions),
        150,
        1_000,
        "loop",
    ),
    WorstInput(
        "tools, pythonic: many required properties",
        ("text/tool_grammar.py",),
        partial(_calls, ToolStyle.PYTHONIC, _properties_and_required),
        1_000,
        3_000,
        "loop",
    ),
    WorstInput(
        "structural tag: many tags and triggers",
        ("text/tag_grammar.py",),
        _many_tags,
        200,
        _SCHEMA_BYTES // 60,
        "loop",
    ),
    WorstInput(
        "structural tag: many parts, as deep as may be",
        ("text/tag_grammar.py",),
        _nested_tags,
        150,
        _SCHEMA_BYTES // 36,
        "loop",
    ),
    WorstInput(
        "structural tag as text",
        ("api/calls/output_form.py",),
        lambda n: _form(structured_outputs={"structural_tag": "[" * n}),
        16_000,
        _SCHEMA_BYTES,
        "loop",
    ),
    WorstInput(
        "GBNF: many rules",
        ("structured/grammar_source.py",),
        lambda n: _source(GrammarSpec("grammar", "root ::= " + '"a" ' * n + "\n", "grammar")),
        500,
        _SCHEMA_BYTES // 4,
        "pool",
    ),
]
