from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.json_call import JsonCall
from service.text.partial_call import CallStatus, CallText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"', "{", "]", "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.integers(1, 20), st.booleans(), st.booleans())
def test_reads_any_arguments_however_they_are_cut(
    arguments: dict[str, Any], size: int, arguments_first: bool, extra: bool
) -> None:
    fields: dict[str, Any] = {"name": "f", "arguments": arguments}
    if arguments_first:
        fields = dict(reversed(fields.items()))
    if extra:
        fields = {"id": 5, "type": "function", **fields, "more": [{}]}
    text, call, written = json.dumps(fields, indent=1) + "rest", JsonCall(["f"]), ""
    rest = ""
    for start in range(0, len(text), size):
        news, left = call.push(text[start : start + size])
        written, rest = written + news.arguments, rest + left
    assert call.status is CallStatus.DONE
    assert json.loads(written) == arguments
    assert rest == "rest"
    assert call.text + rest == text


@pytest.mark.parametrize(
    "text", ["[1]", "x", '{"name": "g"}', '{"name": 5}', '{"a": 1}', "{]", '{"a" "b"}', '{"name": "f" : 1}', "{5: 1}"]
)
def test_what_is_no_call_is_given_back(text: str) -> None:
    call = JsonCall(["f"])
    news, rest = call.push(text)
    assert news == CallText()
    assert call.status is CallStatus.NO_CALL
    assert call.text + rest == text


def test_is_unsure_until_the_name_is_known() -> None:
    call = JsonCall(["f"])
    assert call.push('{"name": "f"')[0] == CallText()
    assert call.status is CallStatus.UNSURE
    assert call.push(", ")[0] == CallText("f", "")
    assert call.status is CallStatus.OPEN


def test_a_call_that_stops_making_sense_ends_there() -> None:
    call = JsonCall(["f"])
    call.push('{"name": "f", "arguments": {"a": 1')
    assert call.push("]xx") == (CallText(), "xx")
    assert call.status is CallStatus.DONE


def test_half_a_character_in_arguments_written_as_a_string_is_replaced() -> None:
    assert JsonCall(["f"]).push(r'{"name": "f", "arguments": "x\ud800"}')[0] == CallText("f", "x\ufffd")
