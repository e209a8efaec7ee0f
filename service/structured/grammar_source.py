"""What a client asks for -> llguidance's own grammar text. Checks nothing: the compiler does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from service.core.grammar import STANDARD_WHITESPACE, GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # in the package's stubs only


_OPTIONS = '%llguidance {"no_forcing": true}'
"""Where only one text can follow, llguidance would tokenize it as a text is tokenized and allow no other tokens. Then
the literal `<tool_call>` may not be the token that the model has for it, or only that one, and a long one is tokenized
again at each of its tokens. Without, each token that is a beginning of what may follow is allowed."""

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
    """Raises ValueError with the reason if it is not a schema, pattern or grammar at all.

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
    """Grammars as llguidance takes several; the first one is the whole, and has the options: a schema has no place for
    them. They stand last, so that errors tell a client's lines by their numbers."""
    return json.dumps({"grammars": [{"lark_grammar": f"{lark}\n{_OPTIONS}"}, *others]})


def _with_ids(lark: str, marks: Mapping[str, int]) -> str:
    """`<think>` stands for the token that is so called, which llguidance knows by its id alone if it is no special."""

    def with_id(found: re.Match[str]) -> str:
        token_id = marks.get(found["mark"] or "")
        return found[0] if token_id is None else f"<[{token_id}]>"

    return _MARK_OR_OTHER.sub(with_id, lark)


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
