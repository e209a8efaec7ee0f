"""Limits on schemas, patterns and grammars: beyond them compiling takes too long, or ends the process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

from service.config import ApiConfig
from service.errors import InvalidRequest

_LEAST = -9_000_000_000_000_000_000
"""llguidance (1.9) reads -2^63 and -2^63 + 1 as the same float, and recurses without end where integers end there: the
stack overflows, which ends the process. A lower bound alone is safe: a grammar with it is refused when it is
compiled. Tools that need no grammar may have it, as those with an int64 do."""

_MOST_DIGITS = 5
"""Significant digits of a multipleOf. llguidance makes a state of each remainder: 99,991 takes 0.5 s and 40 MB,
9,999,991 a minute and 4 GB. Counts do not multiply: it compiles `maxLength` and `minItems` of 1e9 in 10 ms."""

_END_INTEGERS = ("maximum", "exclusiveMaximum", "const", "enum")
_EMBEDDED = re.compile(r"%json\s*")
_MOST_UNREAD = 16
"""Each costs a scan of the lines before it."""
_OF_ANY_TEXT = frozenset({"password", "binary", "path", "file-path", "directory-path"})
"""Formats that rule out no text: OpenAPI's, and those that pydantic writes for SecretStr, bytes and paths. They are
removed, so that no schema is refused for them."""
_VALUES = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose value is not a schema."""


def schema_text(schema: object, param: str, config: ApiConfig) -> str:
    """A schema as JSON text; InvalidRequest if it is larger or deeper than allowed."""
    try:
        num_bytes = len(orjson.dumps(schema))
    except orjson.JSONEncodeError as error:  # deeper than orjson goes, which is deeper than is allowed
        raise _too_deep(param, config) from error
    if num_bytes > config.max_schema_bytes:
        raise InvalidRequest(f"{param} may have at most {config.max_schema_bytes} bytes.", param=param)
    _check_schema(schema, param, config)
    return orjson.dumps(without_annotations(schema)).decode()


def check_regex_size(pattern: str, param: str, config: ApiConfig) -> None:
    if len(pattern.encode()) > config.max_regex_bytes:
        raise InvalidRequest(f"{param} may have at most {config.max_regex_bytes} bytes.", param=param)


def check_grammar(text: str, param: str, config: ApiConfig) -> None:
    """Of Lark and GBNF; a schema in it (`%json {...}`) has the same limits as any other."""
    if not text.strip() or len(text.encode()) > config.max_schema_bytes:
        raise InvalidRequest(f"{param} must have 1 to {config.max_schema_bytes} bytes.", param=param)
    if text.count("&") > config.max_patterns_at_once:
        raise InvalidRequest(f"{param} may have at most {config.max_patterns_at_once} intersections (&).", param=param)
    position, num_unread = 0, 0
    while (found := _EMBEDDED.search(text, position)) is not None:
        position = found.end()
        try:
            schema, position = json.JSONDecoder().raw_decode(text, position)
        except RecursionError as error:
            raise _too_deep(param, config) from error
        except ValueError as error:  # left to the compiler to refuse, if it is not inside a literal
            num_unread += 1
            if num_unread > _MOST_UNREAD:
                raise InvalidRequest(
                    f"{param} may hold at most {_MOST_UNREAD} %json that no JSON follows.", param=param
                ) from error
            continue
        _check_schema(schema, param, config)


def _check_schema(schema: object, param: str, config: ApiConfig) -> None:
    _check_depth(schema, param, config)
    values = _values(schema)
    for each in values:
        if isinstance(each.value, dict):
            _check_enum(each.value, param, config)
            _check_patterns(each.value, param, config)
            _check_divisor(each.value, param)
        _check_least(each, param)
    _check_intersections(values, param, config)


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
    return InvalidRequest(f"{param} may be nested at most {config.max_schema_depth} levels deep.", param=param)


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


def _check_least(each: _Value, param: str) -> None:
    if each.ends_integers is not None and isinstance(each.value, int | float) and each.value < _LEAST:
        raise InvalidRequest(f"{param}: {each.ends_integers} must be at least {_LEAST}.", param=param)


def _check_divisor(node: dict[str, Any], param: str) -> None:
    divisor = node.get("multipleOf")
    if isinstance(divisor, int | float) and _num_digits(divisor) > _MOST_DIGITS:
        raise InvalidRequest(f"{param}: multipleOf may have at most {_MOST_DIGITS} significant digits.", param=param)


def _num_digits(number: float) -> int:
    return len(Decimal(repr(number + 0)).normalize().as_tuple().digits)


def _check_intersections(values: Sequence[_Value], param: str, config: ApiConfig) -> None:
    """Refuses an allOf of many patterns. An allOf with a $ref may gather all patterns of the schema."""
    num_patterns, refers = [0] * len(values), [False] * len(values)  # of each value, with all that it holds
    for index in reversed(range(len(values))):
        value, holder = values[index].value, values[index].holder
        if isinstance(value, dict):
            num_patterns[index] += "pattern" in value
            refers[index] |= "$ref" in value
        if holder is not None:
            num_patterns[holder] += num_patterns[index]
            refers[holder] |= refers[index]
    most = config.max_patterns_at_once
    for index, each in enumerate(values):
        if each.name == "allOf" and num_patterns[0 if refers[index] else index] > most:
            raise InvalidRequest(f"{param}: allOf may join at most {most} patterns.", param=param)


class _Value(NamedTuple):
    """One value of a schema. name: its key, if an object holds it. holder: the index of the value that holds it, which
    comes earlier. ends_integers: the outermost of the keywords around it that bound integers from above."""

    value: Any
    name: str | None = None
    holder: int | None = None
    ends_integers: str | None = None


def _values(schema: object) -> list[_Value]:
    """The schema, and every value in it, each once."""
    values = [_Value(schema)]
    for holder, each in enumerate(values):  # grows meanwhile
        members: Iterable[tuple[str | None, Any]] = ()
        if isinstance(each.value, dict):
            members = each.value.items()
        elif isinstance(each.value, list):
            members = ((None, value) for value in each.value)
        values += [
            _Value(value, name, holder, each.ends_integers or (name if name in _END_INTEGERS else None))
            for name, value in members
        ]
    return values


def without_annotations(schema: Any) -> Any:
    """A copy of the schema without formats that rule out no text."""
    if isinstance(schema, list):
        return [without_annotations(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else without_annotations(value)
        for key, value in schema.items()
        if not (key == "format" and isinstance(value, str) and value in _OF_ANY_TEXT)
    }
