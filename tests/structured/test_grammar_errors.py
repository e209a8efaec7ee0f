from __future__ import annotations

import pytest

from service.structured.grammar_errors import grammar_fault


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('Unimplemented keys: ["not"]', 'these keywords are not supported: ["not"]'),
        ("too many states\n<non-verbose/>", "too many states"),
        ("at 1(8): & is only for tokens\n   1 | start: A & B\n", "line 1, column 8: & is only for tokens"),
        ("regex parse error:\n    (\n    ^\nerror: unclosed group", "pattern (: unclosed group"),
        ("Pointer '/a' does not exist", "$ref: Pointer '/a' does not exist"),
        ("", "no output can satisfy it"),
        ("NoExtensionBias\n<state>\nTokens", "no output can satisfy it: a $ref or a rule leads only to itself"),
        (
            "Resource 'http://x/y' is not present in a registry and retrieving it failed: Default retriever does not",
            "$ref: 'http://x/y' is not in this schema; only references within it, such as '#/$defs/a', are followed",
        ),
        (
            "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
            "oneOf is supported only where no value can match two of its alternatives; use anyOf",
        ),
        ('1(10): lexer error\n   1 | start: "a', "line 1, column 10: lexer error"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)
def test_a_client_is_told_the_first_line_and_the_keyword(said: str, told: str) -> None:
    assert grammar_fault(said) == told
