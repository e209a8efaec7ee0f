"""What is read of Lark grammars, against llguidance's reading of the same text."""

from __future__ import annotations

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.lark_automata import read_lark
from tests.structured.tiny_grammars import VOCABULARY

READ = [
    'start: "a"',
    '// a comment\nstart: "a" # another\n  | "b" -> name\n\n  \n?more: "c"',
    '!start: _x-y ["b"] ("c" | ("d" "e")+)* "f"~2..3 "g"{1,} "h"{,2} "i"~2\n_x-y: "z"?',
    'start: A B_1 C\nA: B_1 | /x\\/y/ "i" ~ 2\nB_1: "a".."f"\nC: /[^"\\\\]/ (\'b\')?'.replace("'", '"'),
    '%import common.CNAME -> NAME\n%import common.WS\n%ignore WS\n%ignore "#"\nstart: NAME ("," NAME)* ""',
    '%llguidance {}\nstart: "Select"i start |',
]


@pytest.mark.parametrize("grammar", READ)
def test_is_read(grammar: str) -> None:
    compile_grammar(GrammarSpec("lark", grammar, "x"), VOCABULARY)
    assert read_lark(grammar) is not None


@pytest.mark.parametrize(
    "grammar",
    [
        "start: x\nx[lazy]: /a*b/",
        'start: x\nx[stop="b"]: /a*/',
        "start: %json {}",
        'start: %regex {"substring_words": "a b"}',
        "start: <|im_end|>",
        "start: @other",
        'start: A\nA.2: "a"',
        'start: "a" x{"b"}\nx{y}: y',
        "start: /a/i",
        "start: /^a/",
        "start: /a$/",
        "start: /a+?/",
        "start: /a*/",
        'start: A\nA: "a"?',
        "start: A\nA: B\nB: A",
        "start: a",
        'a: "b"',
        'start: "a"\nstart: "b"',
        'start: "é"i',
        'start: ("a"',
        'start: "a" )',
        "start:",
        "",
        '%llguidance {"no_forcing": true}\nstart: "a"',
        "%import common.SQL_COMMENT\nstart: SQL_COMMENT",
        '%declare A\nstart: "a"',
        'start: "a"{5000,}',
        "start: " + "(" * 2000 + '"a"' + ")" * 2000,
        'start: "a" & "b"',
        'start: "a\\q"',
        'start: "ab".."c"',
    ],
)
def test_anything_else_is_not(grammar: str) -> None:
    lark = read_lark(grammar)
    assert lark is None or (grammar == "start:" and not lark.terminal_bounds)


def test_terminals_that_double_each_other_take_no_time() -> None:
    doubling = "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(60))
    assert read_lark(f'start: T0\n{doubling}\nT60: "a"') is None, "too large"


def test_bounds() -> None:
    lark = read_lark('start: x "a"\nx: B\nB: "b"\n%ignore " "')
    assert lark is not None
    assert (len(lark.rule_bounds), len(lark.terminal_bounds), lark.ignored) == (2, 3, 2)
