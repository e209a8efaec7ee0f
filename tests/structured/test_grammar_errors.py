from __future__ import annotations

import pytest

from service.structured.grammar_errors import grammar_fault


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('Unimplemented keys: ["not"]', 'Unimplemented keys: ["not"]'),
        ("too many states\n<non-verbose/>", "too many states"),
        ("at 1(8): & is only for tokens\n   1 | start: A & B\n", "at 1(8): & is only for tokens"),
        ("regex parse error:\n    (\n    ^\nerror: unclosed group", "pattern (: unclosed group"),
        ("Pointer '/a' does not exist", "$ref: Pointer '/a' does not exist"),
        ("", "no output can satisfy it"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)
def test_a_client_is_told_the_first_line_and_the_keyword(said: str, told: str) -> None:
    assert grammar_fault(said) == told
