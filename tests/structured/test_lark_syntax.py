from __future__ import annotations

import pytest

from service.structured.lark_syntax import Choice, LarkDefinitions, Repeated, Value
from service.structured.regex_syntax import NotPlain


def once(kind: str, text: str) -> Repeated:
    return Repeated(Value(kind, text), 1, 1)


def start_of(grammar: str) -> Choice:
    return LarkDefinitions(grammar).rules["start"]


def test_rules_and_terminals_by_name_and_what_is_ignored() -> None:
    read = LarkDefinitions('start: one NAME\n?one: "a"\n\nNAME: /b+/  // a remark\n%ignore " "\n%ignore NAME\n')
    assert read.rules == {
        "start": ((once("rule", "one"), once("terminal", "NAME")),),
        "one": ((once("string", '"a"'),),),
    }
    assert read.terminals == {"NAME": ((once("regex", "/b+/"),),)}
    assert read.ignored == [((once("string", '" "'),),), ((once("terminal", "NAME"),),)]


def test_alternatives_may_stand_in_lines_of_their_own_and_be_empty() -> None:
    a, b = once("string", '"a"'), once("string", '"b"')
    assert start_of('start: "a"\n     | "b" "a" -> name\n     |\n') == ((a,), (b, a), ())


@pytest.mark.parametrize(
    ("written", "least", "most"),
    [
        ('"a"*', 0, None),
        ('"a"+', 1, None),
        ('"a"?', 0, 1),
        ('["a"]', 0, 1),
        ('"a"~3', 3, 3),
        ('"a"~2..4', 2, 4),
        ('"a"{3}', 3, 3),
        ('"a"{2,4}', 2, 4),
        ('"a"{2,}', 2, None),
        ('"a"{,4}', 0, 4),
    ],
)
def test_repetitions(written: str, least: int, most: int | None) -> None:
    ((repeated,),) = start_of(f"start: {written}")
    assert (repeated.least, repeated.most) == (least, most)


def test_groups_and_ranges() -> None:
    inner = ((Repeated(Value("range", '"a"', '"f"'), 1, 1),), (once("string", '"x"i'),))
    assert start_of('start: ("a".."f" | "x"i)+') == ((Repeated(inner, 1, None),),)


def test_common_terminals_may_get_another_name() -> None:
    read = LarkDefinitions("%import common.DIGIT\n%import common.WS -> SPACE\nstart: DIGIT")
    assert read.terminals.keys() == {"DIGIT", "SPACE"}


@pytest.mark.parametrize(
    "grammar",
    [
        "start: a\nstart: b",
        "A: /a/\nA: /b/",
        "start",
        'start: "a"{2',
        'start: ("a"',
        "start: %json {}",
        "start: ;",
        "%x",
    ],
)
def test_what_is_not_plain_is_refused(grammar: str) -> None:
    with pytest.raises(NotPlain):
        LarkDefinitions(grammar)
