from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.partial_call import CallStatus
from service.text.pythonic_call import PythonicCall

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["'", '"', "(", "]", "\\", ","]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def read(text: str, size: int = 1000) -> tuple[PythonicCall, str, str]:
    """The call, its arguments and the rest."""
    call, written, rest = PythonicCall(["f", "far"]), "", ""
    for start in range(0, len(text), size):
        news, left = call.push(text[start : start + size])
        written, rest = written + news.arguments, rest + left
    return call, written, rest


@given(st.dictionaries(st.sampled_from(["a", "b", "c_1"]), VALUES), st.integers(1, 20))
def test_reads_any_literals_however_they_are_cut(arguments: dict[str, Any], size: int) -> None:
    text = "f(" + ", ".join(f"{name}={value!r}" for name, value in arguments.items()) + ")rest"
    call, written, rest = read(text, size)
    assert call.status is CallStatus.DONE
    assert json.loads(written) == arguments
    assert rest == "rest"


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("true", True),
        ("null", None),
        ("-1e3", -1000.0),
        ("Paris", "Paris"),
        ("__import__('os')", "__import__('os')"),
        ("NaN", "NaN"),  # Python's JSON has them, the standard's has not
        ("[1, -Infinity]", "[1, -Infinity]"),
    ],
)
def test_words_that_are_no_python_literals(value: str, meaning: object) -> None:
    assert json.loads(read(f"f(a={value})")[1]) == {"a": meaning}


def test_escaped_halves_of_characters_become_characters() -> None:
    assert json.loads(read(r"f(a='\ud83d\ude00', b='\ud83d')")[1]) == {"a": "😀", "b": "\ufffd"}


def test_deep_nesting_is_a_text() -> None:
    value = "[" * 50_000 + "]" * 50_000
    assert json.loads(read(f"f(a={value})")[1]) == {"a": value}


@pytest.mark.parametrize("text", ["g(", "f x(", "Hello", "fa("])
def test_what_is_no_call(text: str) -> None:
    call, written, rest = read(text)
    assert (call.status, written) == (CallStatus.NO_CALL, "")
    assert call.text + rest == text
