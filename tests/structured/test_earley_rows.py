from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from service.structured.earley_rows import EarleyRows
from service.structured.lark_automata import Lark, read_lark

LIST = 'start: "a" ("b" "a")*'
LEFT = 'start: start "b" "a" | "a"'
NESTED = 'start: "a" start "b" | '
EMPTY = 'start: x "a" x | x x\nx: y?\ny: x "b"'


def rows_of(grammar: str) -> tuple[EarleyRows, Lark]:
    lark = read_lark(grammar)
    assert lark is not None
    return EarleyRows(lark), lark


def row_after(grammar: str, terminals: Sequence[int]) -> int | None:
    rows, _ = rows_of(grammar)
    row = rows.first
    for terminal in terminals:
        if row is None:
            return None
        row = rows.after(row, [terminal])
    return row


def fits(grammar: str, letters: str) -> bool:
    """Whether the letters are a beginning of a text. `a` stands for the terminal that the grammar names first."""
    return row_after(grammar, ["ab".index(letter) for letter in letters]) is not None


BEGINNINGS = {
    LIST: lambda text: text == ("ab" * len(text))[: len(text)],
    LEFT: lambda text: text == ("ab" * len(text))[: len(text)],
    NESTED: lambda text: "ba" not in text and text.count("b") <= text.count("a"),
}


@pytest.mark.parametrize("grammar", BEGINNINGS, ids=["list", "left", "nested"])
@pytest.mark.parametrize("length", range(1, 7))
def test_a_text_has_a_row_if_it_can_be_continued(grammar: str, length: int) -> None:
    swapped = grammar is LEFT  # it names "b" first
    for text in map("".join, product("ab", repeat=length)):
        spelled = text.translate(str.maketrans("ab", "ba")) if swapped else text
        assert fits(grammar, spelled) == BEGINNINGS[grammar](text), text


@pytest.mark.parametrize("grammar", [LIST, LEFT], ids=["list", "left"])
def test_however_long_a_list_is_its_rows_are_the_same(grammar: str) -> None:
    first, then = (0, 1) if grammar is LIST else (1, 0)
    short, long = [first, then, first, then], [first, then] * 20
    assert row_after(grammar, short) == row_after(grammar, long) is not None


def test_each_depth_has_rows_of_its_own() -> None:
    rows, _ = rows_of(NESTED)
    row, seen = rows.first, set[int]()
    for _ in range(20):
        assert row is not None
        seen.add(row)
        row = rows.after(row, [0])
    assert len(seen) == 20


def test_rules_may_be_empty_and_call_themselves() -> None:
    rows, _ = rows_of(EMPTY)
    assert rows.first is not None
    assert rows.terminals(rows.first) == {0, 1}
    after = rows.after(rows.first, [0])
    assert after is not None
    assert rows.terminals(after) == {1}


def test_a_piece_may_be_several_terminals() -> None:
    rows, _ = rows_of('start: "a" "x" | "b" "y"')
    assert rows.first is not None
    both = rows.after(rows.first, [0, 2])
    assert both is not None
    assert rows.terminals(both) == {1, 3}


def test_rows_are_bounded() -> None:
    rows, _ = rows_of(NESTED)
    row, num_rows = rows.first, 0
    while row is not None:
        num_rows += 1
        assert num_rows < 2_000
        row = rows.after(row, [0])
    assert num_rows > 500
    many = " | ".join(f'"a{i}"' for i in range(160))
    assert rows_of(f"start: {many}")[0].first is None
