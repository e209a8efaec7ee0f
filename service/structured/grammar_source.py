"""What a client asks for -> llguidance's own grammar text. Checks nothing: the compiler does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from service.core.grammar import STANDARD_WHITESPACE, GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # in the package's stubs only


def grammar_source(spec: GrammarSpec) -> str:
    """Raises ValueError with the reason if it is not a schema, pattern or grammar at all."""
    match spec.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(_as_object(spec.source), overrides=json_options(spec.whitespace))
        case "regex":
            return LLMatcher.grammar_from_regex(spec.source)
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(spec.source))))
        case "lark":
            return LLMatcher.grammar_from_lark(spec.source)
        case "grammar":
            return LLMatcher.grammar_from_lark(as_lark(spec.source))


def as_lark(grammar: str) -> str:
    """A client's Lark as it is, its GBNF as Lark. Raises ValueError."""
    if "::=" not in grammar:
        return grammar
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the library's own have no family
        raise ValueError(f"it is neither Lark nor GBNF: {error}") from error


def _as_object(schema: str) -> str:
    """A schema may be `true`, which is any JSON, or `false`, which is none; llguidance's options need an object."""
    if schema == "false":
        raise ValueError("false: no output can satisfy it")
    return "{}" if schema == "true" else schema


def json_options(whitespace: str | None) -> JsonCompileOptions:
    """llguidance's options for a schema; `whitespace` as in GrammarSpec."""
    if whitespace == "":
        return {"whitespace_flexible": False}
    return {"whitespace_flexible": True, "whitespace_pattern": whitespace or STANDARD_WHITESPACE}
