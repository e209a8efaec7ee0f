from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.answers.content_blocks import ContentBlocks, event_frame, whole_blocks
from service.text.chat_output import OutputDelta, ReasoningDelta
from service.text.tool_calls import CallDelta, TextDelta
from tests.api.messages_wire import assembled, events_of

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@st.composite
def answers(draw: st.DrawFn) -> list[OutputDelta]:
    """What a model may say, told in whatever pieces."""
    deltas: list[OutputDelta] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["thinks", "says", "calls"]), max_size=6)):
        pieces = draw(st.lists(TEXTS, min_size=1, max_size=3))
        if kind == "thinks":
            deltas += [ReasoningDelta(piece) for piece in pieces]
        elif kind == "says":
            deltas += [TextDelta(piece) for piece in pieces]
        else:
            deltas.append(CallDelta(num_calls, "f", ""))
            deltas += [
                CallDelta(num_calls, None, piece) for piece in draw(st.sampled_from([[], ["{}"], ['{"a"', ":1}"]]))
            ]
            num_calls += 1
    return deltas


def numbered() -> Any:
    numbers = count()
    return lambda: f"toolu_{next(numbers)}"


def told(pieces: list[list[OutputDelta]], *, shows_thinking: bool) -> list[dict[str, Any]]:
    """What a client makes of the deltas that come in these pieces."""
    blocks = ContentBlocks(numbered(), shows_thinking=shows_thinking)
    frames = b"".join([*map(blocks.deltas, pieces), blocks.close()])
    usage = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
        "output_tokens_details": None,
    }
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    begun = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    start = event_frame("message_start", {"message": {**begun, "stop_reason": None, "stop_sequence": None}})
    stop = event_frame("message_delta", {"delta": end, "usage": usage}) + event_frame("message_stop", {})
    return list(assembled(events_of((start + frames + stop).decode()))["content"])


@given(st.data(), answers(), st.booleans())
def test_a_stream_has_the_blocks_of_the_whole_however_it_is_cut(
    data: st.DataObject, deltas: list[OutputDelta], shows_thinking: bool
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(deltas)))))
    pieces = [deltas[a:b] for a, b in zip([0, *cuts], [*cuts, len(deltas)], strict=True)]
    whole = whole_blocks("", deltas, numbered(), shows_thinking=shows_thinking)
    assert told(pieces, shows_thinking=shows_thinking) == [block.model_dump() for block in whole]


def test_thinking_that_is_not_shown_keeps_its_signature() -> None:
    shown, omitted = (
        whole_blocks("", [ReasoningDelta("so")], numbered(), shows_thinking=shows)[0].model_dump()
        for shows in (True, False)
    )
    assert (shown["thinking"], omitted["thinking"]) == ("so", "")
    assert shown["signature"] == omitted["signature"] != ""


def test_plain_text_is_one_block() -> None:
    assert [block.model_dump() for block in whole_blocks("a", [], numbered(), shows_thinking=True)] == [
        {"type": "text", "text": "a"}
    ]
    assert whole_blocks("", [], numbered(), shows_thinking=True) == []


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("", {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": 1, "b": "cut off', {"a": 1}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": }', {"INVALID_JSON": '{"a": }'}),
        ('{"a":' * 5000, {"INVALID_JSON": '{"a":' * 5000}),
    ],
    ids=["none", "cut", "cut in a text", "no object", "no JSON", "deep"],
)
def test_arguments_that_are_not_whole(arguments: str, read: dict[str, Any]) -> None:
    (block,) = whole_blocks("", [CallDelta(0, "f", arguments)], numbered(), shows_thinking=True)
    assert block.model_dump()["input"] == read
