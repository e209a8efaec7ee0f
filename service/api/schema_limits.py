"""What a schema, a pattern or a grammar may ask of the compiler: more would take it too long, or end the process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import orjson

from service.api.schema_annotations import without_annotations
from service.config import ApiConfig
from service.errors import InvalidRequest

_LEAST = -9_000_000_000_000_000_000
"""llguidance (1.9) sees -2^63 and -2^63 + 1 as one float, and recurses without end where integers end there: the stack
overflows, which ends the process. A lower bound alone is safe: a grammar with it is refused when it is compiled, and
tools that need no grammar may have it, as those with an int64 do."""

_MOST_DIGITS = 5
"""Of a multipleOf, zeros at its ends left out. llguidance makes a state of each remainder: 99,991 takes 0.5 s and 40
MB, 9,999,991 a minute and 4 GB. Counts multiply nothing: it compiles `maxLength` and `minItems` of 1e9 in 10 ms."""

_END_INTEGERS = ("maximum", "exclusiveMaximum", "const", "enum")
_EMBEDDED = re.compile(r"%json\s*")


def schema_text(schema: object, param: str, config: ApiConfig) -> str:
    """A schema as JSON text; InvalidRequest if it is larger or deeper than any that is honoured."""
    try:
        num_bytes = len(orjson.dumps(schema))
    except orjson.JSONEncodeError as error:  # deeper than it goes, and it goes deeper than we do
        raise _too_deep(param, config) from error
    if num_bytes > config.max_schema_bytes:
        raise InvalidRequest(f"{param} may have at most {config.max_schema_bytes} bytes.", param=param)
    _check_schema(schema, param, config)
    return orjson.dumps(without_annotations(schema)).decode()


def check_regex_size(pattern: str, param: str, config: ApiConfig) -> None:
    if len(pattern.encode()) > config.max_regex_bytes:
        raise InvalidRequest(f"{param} may have at most {config.max_regex_bytes} bytes.", param=param)


def check_grammar(text: str, param: str, config: ApiConfig) -> None:
    """Of Lark and GBNF; a schema in it (`%json {...}`) is held to what any other is."""
    if not text.strip() or len(text.encode()) > config.max_schema_bytes:
        raise InvalidRequest(f"{param} must have 1 to {config.max_schema_bytes} bytes.", param=param)
    if text.count("&") > config.max_patterns_at_once:
        raise InvalidRequest(f"{param} may have at most {config.max_patterns_at_once} intersections (&).", param=param)
    for found in _EMBEDDED.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except RecursionError as error:
            raise _too_deep(param, config) from error
        except ValueError:  # for the compiler to refuse
            continue
        _check_schema(schema, param, config)


def _check_schema(schema: object, param: str, config: ApiConfig) -> None:
    _check_depth(schema, param, config)
    for node in _nodes(schema):
        _check_enum(node, param, config)
        _check_patterns(node, param, config)
        _check_numbers(node, param)
    _check_intersections(schema, param, config)


def _check_depth(schema: object, param: str, config: ApiConfig) -> None:
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > config.max_schema_depth:
            raise _too_deep(param, config)
        if isinstance(value, dict | list):
            members = value.values() if isinstance(value, dict) else value
            waiting += [(member, depth + 1) for member in members]


def _too_deep(param: str, config: ApiConfig) -> InvalidRequest:
    return InvalidRequest(f"{param} may be nested {config.max_schema_depth} deep at most.", param=param)


def _check_enum(node: dict[str, Any], param: str, config: ApiConfig) -> None:
    values = node.get("enum")
    if isinstance(values, list) and len(values) > config.max_enum_values:
        raise InvalidRequest(f"{param}: an enum may hold at most {config.max_enum_values} values.", param=param)
    if values == []:
        raise InvalidRequest(f"{param}: an enum must hold at least one value.", param=param)


def _check_patterns(node: dict[str, Any], param: str, config: ApiConfig) -> None:
    by_pattern = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())):
        if isinstance(pattern, str):
            check_regex_size(pattern, f"{param}: pattern", config)


def _check_numbers(node: dict[str, Any], param: str) -> None:
    for name in _END_INTEGERS:
        if any(isinstance(value, int | float) and value < _LEAST for value in _values(node.get(name))):
            raise InvalidRequest(f"{param}: {name} must not be less than {_LEAST}.", param=param)
    divisor = node.get("multipleOf")
    if isinstance(divisor, int | float) and _num_digits(divisor) > _MOST_DIGITS:
        raise InvalidRequest(f"{param}: multipleOf may have at most {_MOST_DIGITS} significant digits.", param=param)


def _num_digits(number: float) -> int:
    return len(Decimal(repr(number + 0)).normalize().as_tuple().digits)


def _check_intersections(schema: object, param: str, config: ApiConfig) -> None:
    """Refuse an allOf of many patterns. One that refers elsewhere may gather all that the schema has."""
    everywhere = sum("pattern" in node for node in _nodes(schema))
    for node in _nodes(schema):
        if "allOf" in node:
            inside = list(_nodes(node["allOf"]))
            refers = any("$ref" in each for each in inside)
            num_patterns = everywhere if refers else sum("pattern" in each for each in inside)
            if num_patterns > config.max_patterns_at_once:
                most = config.max_patterns_at_once
                raise InvalidRequest(f"{param}: allOf may join at most {most} patterns.", param=param)


def _nodes(schema: object) -> Iterator[dict[str, Any]]:
    """Every object in the schema."""
    return (value for value in _values(schema) if isinstance(value, dict))


def _values(value: object) -> Iterator[Any]:
    """The value, and every value in it."""
    waiting: list[Any] = [value]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
