"""Tool calls as a grammar (Lark, as llguidance reads it), in the style that the model's parser reads (tool_calls.py).

Each function's arguments are constrained by its own schema, so a `$ref` finds the schema's own definitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.core.grammar import STANDARD_WHITESPACE
from service.text.tool_calls import MISTRAL_MARKER, ToolStyle

_PYTHON_ESCAPES = 'nrbtf\\"'
"""Escapes that mean the same in JSON and in a Python literal."""
MOST_CHARACTERS = 1024 * 1024
"""Of all values in Python calls: each property with a $ref gets a copy of its schema's definitions."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """parameters: a JSON schema; None: the function takes no arguments. is_strict: an unsupported keyword is refused;
    else it is ignored."""

    name: str
    parameters: Mapping[str, Any] | None
    is_strict: bool


@dataclass(frozen=True, slots=True)
class CallRules:
    """must_call: the output has only calls; else it may be text, or calls.

    parallel: there may be several calls in a row. content: a JSON schema for the text; None: any text.
    marker: id of the token that begins the calls, if that is a special token (Mistral's).
    """

    must_call: bool
    parallel: bool
    content: str | None = None
    marker: int | None = None


def call_grammar(style: ToolStyle, tools: Sequence[CallableTool], rules: CallRules) -> str:
    """Raises ValueError with the reason if a function cannot be called in this style."""
    match style:
        case ToolStyle.HERMES:
            lines = _hermes(rules)
            bodies = _json_bodies(tools, "arguments")
        case ToolStyle.LLAMA3_JSON:
            lines = _leading(rules, "call", '"; "', "", r"/[^{\s](.|\n)*/")
            bodies = _json_bodies(tools, "parameters")
        case ToolStyle.MISTRAL:
            marker = f'"{MISTRAL_MARKER}"' if rules.marker is None else f"<[{rules.marker}]>"
            text = r"/[^\[\s](.|\n)*/" if rules.marker is None else r"/(.|\n)*/"
            lines = _leading(rules, f'{marker} / ?/ "[" call', '", "', '"]"', text)
            bodies = _json_bodies(tools, "arguments")
        case ToolStyle.PYTHONIC:
            lines = _leading(rules, '"[" call', '", "', '"]"', r"/[^\[\s](.|\n)*/")
            bodies = _python_bodies(tools)
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    return "\n".join([*lines, f"call: {names}", *bodies]) + "\n"


def _hermes(rules: CallRules) -> list[str]:
    """Text may stand before a call, and after the last one if several are allowed."""
    tail = r'"\n" call "\n</tool_call>"'
    if rules.must_call or rules.content is not None:
        block = rf'"<tool_call>" {tail}'
        more = r' ("\n" block)*' if rules.parallel else ""
        return [*_start(rules, f"block{more}", ""), f"block: {block}"]
    start = "start: block* text" if rules.parallel else "start: block | text"
    return [start, f"block: open {tail}", r"open[lazy]: /(.|\n)*<tool_call>/", r"text: /(.|\n)*/"]


def _leading(rules: CallRules, first: str, between: str, end: str, text: str) -> list[str]:
    more = f" ({between} call)*" if rules.parallel else ""
    return _start(rules, f"{first}{more} {end}", text)


def _start(rules: CallRules, calls: str, text: str) -> list[str]:
    if rules.must_call:
        return [f"start: {calls}"]
    content = text if rules.content is None else f"%json {with_options(json.loads(rules.content), is_strict=True)}"
    return ["start: calls | text", f"calls: {calls}", f"text: {content}"]


def _json_bodies(tools: Sequence[CallableTool], key: str) -> list[str]:
    lines = []
    for index, tool in enumerate(tools):
        # Split like JSON, since content that is JSON may begin the same way.
        parts = ["{", '"name"', ":", json.dumps(tool.name), ",", json.dumps(key), ":"]
        head = " ".join(json.dumps(part) + (" / ?/" if part in ":," else "") for part in parts)
        lines.append(f'call_{index}: {head} arguments_{index} "}}"')
        lines.append(f"arguments_{index}: %json {with_options(_parameters(tool), is_strict=tool.is_strict)}")
    return lines


def _python_bodies(tools: Sequence[CallableTool]) -> list[str]:
    """`name(key=value, ...)`: keys in the schema's order; optional ones may be left out.

    Rules of function i: `first_i_n` is its arguments from the n-th on if none stands before them, `next_i_n` the same
    after another argument, so with a comma.
    """
    lines, num_characters = [], 0
    for index, tool in enumerate(tools):
        schema = _parameters(tool)
        is_required = _keywords(schema, tool.name)
        lines.append(f'call_{index}: {json.dumps(tool.name + "(")} first_{index}_0 ")"')
        for number, (key, must_stand) in enumerate(is_required.items()):
            argument, after = f"argument_{index}_{number}", f"{index}_{number + 1}"
            first, following = f"{argument} next_{after}", f'", " {argument} next_{after}'
            if not must_stand:
                first, following = f"{first} | first_{after}", f"{following} | next_{after}"
            lines += [f"first_{index}_{number}: {first}", f"next_{index}_{number}: {following}"]
            value = with_options(_property(schema, key), is_strict=tool.is_strict, escapes=_PYTHON_ESCAPES)
            num_characters += len(value)
            if num_characters > MOST_CHARACTERS:
                raise ValueError(f"with their definitions, the properties have more than {MOST_CHARACTERS} characters")
            lines.append(f"{argument}: {json.dumps(key + '=')} value_{index}_{number}")
            lines.append(f"value_{index}_{number}: %json {value}")
        lines += [f'first_{index}_{len(is_required)}: ""', f'next_{index}_{len(is_required)}: ""']
    return lines


def _keywords(schema: Mapping[str, Any], name: str) -> dict[str, bool]:
    """Each property that a Python call can name, and whether it is required. ValueError if a required one cannot be
    named."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if "properties" not in schema and set(schema) - {"type", "additionalProperties", "description", "title"}:
        raise ValueError(f"the parameters of {name} have no list of properties")
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise ValueError(f"the parameters of {name} have properties or required of a wrong type")
    if not all(isinstance(key, str) and key in properties and key.isidentifier() for key in required):
        raise ValueError(f"the parameters of {name} have names that cannot be keywords")
    names = set(required)
    return {key: key in names for key in properties if key.isidentifier()}


def _parameters(tool: CallableTool) -> dict[str, Any]:
    """The schema of an object. If it lists its properties, no others are allowed, as for a function."""
    schema = dict(tool.parameters or {"properties": {}})
    if not {"type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"} & set(schema):
        schema["type"] = "object"
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _property(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One property's schema, with the definitions if it has a $ref."""
    value = schema["properties"][key]
    own = dict(value) if isinstance(value, dict) else {}
    if '"$ref"' not in json.dumps(own):
        return own
    return {**{name: schema[name] for name in ("$defs", "definitions") if name in schema}, **own}


def with_options(schema: Mapping[str, Any], *, is_strict: bool, escapes: str | None = None) -> str:
    """The schema as text, with llguidance's options in it."""
    options: dict[str, Any] = {"whitespace_pattern": STANDARD_WHITESPACE, "lenient": not is_strict}
    if escapes is not None:
        options["json_allowed_escapes"] = escapes
    return json.dumps({**schema, "x-guidance": options})
