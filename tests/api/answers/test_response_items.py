"""The laws of a response's items, whatever is said and however it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.answers.response_events import ResponseEvents
from service.api.answers.response_items import OutputItems
from service.api.calls.response_tools import CalledAs
from service.core.request import FinishReason
from service.text.chat_output import OutputDelta, ReasoningDelta, merged
from service.text.tool_calls import CallDelta, TextDelta

CALLED_AS = {
    "rain": CalledAs("function", "rain", None, "tools[0]"),
    "mcp__go": CalledAs("function", "go", "mcp", "tools[1].tools[0]"),
    "patch": CalledAs("custom", "patch", None, "tools[2]"),
}
WORDS = st.text(min_size=1, max_size=5)
TEXTS = st.builds(TextDelta, WORDS) | st.builds(ReasoningDelta, WORDS)


@st.composite
def outputs(draw: st.DrawFn) -> list[OutputDelta]:
    """Deltas in the order in which a model may say them."""
    deltas: list[OutputDelta] = []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            deltas.append(draw(TEXTS))
            continue
        name = draw(st.sampled_from(sorted(CALLED_AS)))
        arguments = json.dumps({"input": draw(st.text(max_size=9))})
        place = draw(st.integers(0, len(arguments)))
        deltas += [CallDelta(0, name, ""), CallDelta(0, None, arguments[:place]), CallDelta(0, None, arguments[place:])]
    return deltas


def written(pieces: Sequence[Sequence[OutputDelta]], reason: FinishReason) -> tuple[list[dict[str, Any]], list[Any]]:
    """The events, and the items at the end."""
    numbers = count()
    items = OutputItems("resp_1", CALLED_AS, lambda: f"call_{next(numbers)}", ResponseEvents())
    frames = b"".join([items.push(piece) for piece in pieces]) + items.finish(reason)
    events = [json.loads(line[6:]) for line in frames.decode().split("\n") if line.startswith("data: ")]
    return events, orjson.loads(orjson.dumps(items.whole))


def test_a_call_that_was_cut_is_not_complete() -> None:
    items = OutputItems("resp_1", CALLED_AS, lambda: "call_0", ResponseEvents())
    items.push([CallDelta(0, "rain", '{"city": ')])
    items.finish(FinishReason.STOP, call_is_cut=True)
    assert orjson.loads(orjson.dumps(items.whole))[0]["status"] == "incomplete"


def put_together(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client makes of the events: each must come where there is a place for it."""
    items: list[dict[str, Any]] = []
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert not items or items[-1]["status"] != "in_progress", "one is written at a time"
            items.append(event["item"])
            continue
        item = items[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        assert item["status"] == "in_progress"
        field = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
        if kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind.endswith(".delta"):
            assert event["delta"]
            holder, name = (item["content"][event["content_index"]], "text") if field is None else (item, field)
            holder[name] += event["delta"]
        elif kind == "output_item.done":
            assert event["item"] == {**item, "status": event["item"]["status"]}
            items[-1] = event["item"]
        elif kind == "content_part.done":
            assert event["part"] == item["content"][0]
        else:
            assert kind.endswith(".done")
            assert (event["text"] if field is None else event[field]) == (
                item["content"][0]["text"] if field is None else item[field]
            )
    return items


@given(deltas=outputs(), reason=st.sampled_from(FinishReason))
def test_what_a_client_puts_together_is_the_whole(deltas: list[OutputDelta], reason: FinishReason) -> None:
    events, whole = written([[delta] for delta in deltas], reason)
    assert put_together(events) == whole
    statuses = [item["status"] for item in whole]
    last = "incomplete" if reason is FinishReason.LENGTH else "completed"
    assert statuses == ["completed"] * (len(whole) - 1) + [last]
    assert len({item["id"] for item in whole}) == len(whole)


@given(deltas=outputs(), reason=st.sampled_from(FinishReason))
def test_in_pieces_or_at_once_it_is_the_same(deltas: list[OutputDelta], reason: FinishReason) -> None:
    assert written([[delta] for delta in deltas], reason)[1] == written([merged(deltas)], reason)[1]


@given(deltas=outputs())
def test_nothing_is_lost(deltas: list[OutputDelta]) -> None:
    _, whole = written([deltas], FinishReason.STOP)
    said = {"message": "", "reasoning": ""}
    for item in whole:
        for part in item.get("content", ()):
            said[item["type"]] += part["text"]
    assert said["message"] == "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert said["reasoning"] == "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    names = [CALLED_AS[delta.name].name for delta in deltas if isinstance(delta, CallDelta) and delta.name]
    assert [item["name"] for item in whole if "name" in item] == names


def test_calls_go_back_as_the_client_knows_them() -> None:
    deltas = [
        CallDelta(0, "mcp__go", '{"a": 1}'),
        CallDelta(1, "patch", '{"input": "a\\n'),
        CallDelta(1, None, 'b"}'),
    ]
    _, (function, custom) = written([deltas], FinishReason.STOP)
    assert (function["type"], function["namespace"], function["name"]) == ("function_call", "mcp", "go")
    assert (function["arguments"], function["call_id"]) == ('{"a": 1}', "call_0")
    assert (custom["type"], custom["input"], custom["call_id"]) == ("custom_tool_call", "a\nb", "call_1")


@pytest.mark.parametrize("reason", FinishReason)
def test_nothing_said_is_an_empty_message(reason: FinishReason) -> None:
    events, (message,) = written([], reason)
    assert (message["type"], message["content"][0]["text"]) == ("message", "")
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
