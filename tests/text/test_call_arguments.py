from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.call_arguments import arguments_object

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5)


@pytest.mark.parametrize(
    ("text", "with_cut_text", "without"),
    [
        ("", {}, {}),
        (" \n", {}, {}),
        ("null", {}, {}),
        ('{"a": [1, 2', {"a": [1, 2]}, {"a": [1, 2]}),
        ('{"a": 1, "b": "cut o', {"a": 1, "b": "cut o"}, {"a": 1}),
        ('{"a": 1, "cut', {"a": 1}, {"a": 1}),
        ('{"a": "\\ud83d', {"a": ""}, {}),
        ("[1]", {"INVALID_JSON": "[1]"}, {"INVALID_JSON": "[1]"}),
        ("now", {"INVALID_JSON": "now"}, {"INVALID_JSON": "now"}),
        ('{"a": }', {"INVALID_JSON": '{"a": }'}, {"INVALID_JSON": '{"a": }'}),
    ],
)
def test_what_is_read(text: str, with_cut_text: dict[str, Any], without: dict[str, Any]) -> None:
    assert arguments_object(text, keeps_cut_text=True) == with_cut_text
    assert arguments_object(text, keeps_cut_text=False) == without


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 100_000], ids=["[", "{", "9"])
def test_what_no_parser_takes_is_shown_as_it_is(text: str) -> None:
    assert arguments_object(text, keeps_cut_text=True) == {"INVALID_JSON": text}


@given(st.dictionaries(st.text(), JSON), st.integers(min_value=0), st.booleans())
def test_wherever_an_object_is_cut_there_is_an_object_of_its_own_keys(
    arguments: dict[str, Any], at: int, keeps_cut_text: bool
) -> None:
    text = json.dumps(arguments, ensure_ascii=False)
    assert arguments_object(text, keeps_cut_text=keeps_cut_text) == arguments
    cut = arguments_object(text[: at % len(text)], keeps_cut_text=keeps_cut_text)
    assert list(cut) == list(arguments)[: len(cut)]
    for key in list(cut)[:-1]:
        assert cut[key] == arguments[key]
