"""Translates a GrammarSpec into llguidance's grammar text. Checks little: the compiler does that."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from service.core.grammar import STANDARD_WHITESPACE, GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists in the package's stubs only


_OPTIONS = '%llguidance {"no_forcing": true}'
"""Otherwise, where only one text can follow, llguidance tokenizes that text and allows these tokens only. Then the
literal `<tool_call>` might not match the token that the model has for it (or nothing but it), and a long literal would
be tokenized again at each token. With this option, every token that is a prefix of an allowed text is allowed."""

_MARK_OR_OTHER = re.compile(
    r"""
    "(?:\\.|[^"\\])*+(?:"|\\?\Z)    # a literal
    | //[^\n]*+                       # a comment
    | /(?:\\.|[^/\\\n])++/            # a regex
    | (?P<mark> <[^<>\[\]\s"]++> )    # a token by its name
    """,
    re.VERBOSE | re.DOTALL,
)


def grammar_source(spec: GrammarSpec, marks: Mapping[str, int]) -> str:
    """Raises ValueError with the reason if the source is not a schema, pattern or grammar at all.

    marks: as in `TokenTable`; a Lark grammar may name such a token as it may name a special one.
    """
    match spec.kind:
        case "json_schema":
            schema = LLMatcher.grammar_from_json_schema(
                _as_object(spec.source), overrides=json_options(spec.whitespace)
            )
            return _listed("start: @json_schema", json.loads(schema)["grammars"][0])
        case "regex":
            return _listed(json.loads(LLMatcher.grammar_from_regex(spec.source))["grammars"][0]["lark_grammar"])
        case "choice":
            return _listed("start: " + " | ".join(map(json.dumps, json.loads(spec.source))))
        case "lark":
            return _listed(spec.source)
        case "grammar":
            return _listed(_with_ids(as_lark(spec.source), marks))


def _listed(lark: str, *others: object) -> str:
    """A list of grammars in llguidance's format. The first one is the start, and also carries the options, since a
    schema has no place for them. They come last in it, so that line numbers in errors match the client's text."""
    return json.dumps({"grammars": [{"lark_grammar": f"{lark}\n{_OPTIONS}"}, *others]})


def _with_ids(lark: str, marks: Mapping[str, int]) -> str:
    """Replace each `<name>` of a non-special token by its id: llguidance knows only special tokens by name."""

    def with_id(found: re.Match[str]) -> str:
        token_id = marks.get(found["mark"] or "")
        return found[0] if token_id is None else f"<[{token_id}]>"

    return _MARK_OR_OTHER.sub(with_id, lark)


def as_lark(grammar: str) -> str:
    """A client's grammar as Lark: Lark unchanged, GBNF translated. Raises ValueError."""
    if "::=" not in grammar:
        return grammar
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the library's exceptions have no common base
        raise ValueError(f"it is neither Lark nor GBNF: {error}") from error


def _as_object(schema: str) -> str:
    """A schema as a JSON object: llguidance's options need one, but `true` (any JSON) and `false` (none) are valid."""
    if schema == "false":
        raise ValueError("false: no output can satisfy it")
    return "{}" if schema == "true" else schema


def json_options(whitespace: str | None) -> JsonCompileOptions:
    """llguidance's options for a schema. whitespace: as in GrammarSpec."""
    if whitespace == "":
        return {"whitespace_flexible": False}
    return {"whitespace_flexible": True, "whitespace_pattern": whitespace or STANDARD_WHITESPACE}
