from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.reasoning import ReasoningSplitter, begins_inside


def split(text: str, size: int, *, starts_inside: bool = False) -> tuple[str, str]:
    splitter, reasoning, content = ReasoningSplitter(starts_inside=starts_inside), "", ""
    for start in range(0, len(text), size):
        new = splitter.push(text[start : start + size])
        reasoning, content = reasoning + new.reasoning, content + new.content
    rest = splitter.flush()
    return reasoning + rest.reasoning, content + rest.content


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nhm, well\n</think>\n\nIt is 4.", False, "hm, well", "It is 4."),
        ("hm, well\n</think>\n\nIt is 4.", True, "hm, well", "It is 4."),
        ("\n<think>a < b</thin k></think>x</think>", False, "a < b</thin k>", "x</think>"),
        ("It is 4.", False, "", "It is 4."),
        ("It is <think>no</think>", False, "", "It is <think>no</think>"),
        ("<think>\n\n</think>\n\nAt once.", False, "", "At once."),
        ("<think>never ends </thin", False, "never ends </thin", ""),
        ("  <thi", False, "", "  <thi"),
        ("<think>two\n\nparts</think>a\n\nb\n", False, "two\n\nparts", "a\n\nb\n"),
        ("", False, "", ""),
        ("<thinking> is another word", False, "", "<thinking> is another word"),
    ],
)
def test_splits(text: str, inside: bool, reasoning: str, content: str, size: int) -> None:
    assert split(text, size, starts_inside=inside) == (reasoning, content)


@given(st.text(alphabet="a <think/>\n", max_size=40), st.booleans(), st.integers(1, 9))
def test_does_not_depend_on_how_the_text_is_cut(text: str, inside: bool, size: int) -> None:
    assert split(text, size, starts_inside=inside) == split(text, 1000, starts_inside=inside)


def test_content_is_not_held_back() -> None:
    splitter = ReasoningSplitter(starts_inside=True)
    assert splitter.push("so").reasoning == "so"
    assert splitter.is_thinking
    assert splitter.push("</think>ok").content == "ok"
    assert not splitter.is_thinking
    assert splitter.push("\n").content == "\n"


@pytest.mark.parametrize(("end", "inside"), [("assistant\n<think>\n", True), ("<think>", True), ("think>", False)])
def test_a_prompt_may_open_it(end: str, inside: bool) -> None:
    assert begins_inside(end) is inside
