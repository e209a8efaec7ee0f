from __future__ import annotations

from typing import Any

import pytest

from service.api.calls.response_items import ChatMessages
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.responses import InputItem

THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'a "b"'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "7"}
ASKED = {"role": "user", "content": "hi"}


def read(*items: dict[str, Any], instructions: str | None = None) -> ChatMessages:
    messages = ChatMessages(instructions)
    for index, item in enumerate(items):
        messages.add(InputItem.model_validate(item), f"input[{index}]")
    return messages


def shown(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    """The messages, their texts joined."""
    messages = read(*items, instructions=instructions).messages
    return [{**each, "content": "\n".join(part["text"] for part in each["content"] or ())} for each in messages]


def test_what_the_assistant_thought_said_and_called_is_one_message() -> None:
    first, second = (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "patch", "arguments": '{"input":"a \\"b\\""}'}},
    )
    assert shown(ASKED, THOUGHT, SAID, CALL, CUSTOM, RESULT, {**RESULT, "call_id": "c2"}, SAID, ASKED) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [first, second]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
        {"role": "tool", "content": "7", "tool_call_id": "c2"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        ([SAID, SAID], ["assistant", "assistant"]),
        ([SAID, CALL, THOUGHT, SAID, CALL, RESULT], ["assistant", "tool"]),
        ([SAID, THOUGHT], ["assistant", "assistant"]),
        ([THOUGHT, THOUGHT, SAID], ["assistant"]),
        ([CALL, RESULT, CALL, RESULT], ["assistant", "tool", "assistant", "tool"]),
        ([THOUGHT], ["assistant"]),
        ([{"type": "reasoning", "summary": []}, ASKED], ["user"]),
    ],
)
def test_where_a_message_of_the_assistant_ends(items: list[dict[str, Any]], roles: list[str]) -> None:
    assert [message["role"] for message in shown(*items)] == roles


def test_instructions_and_the_system_messages_behind_them_are_one() -> None:
    above = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": [{"type": "input_text", "text": "c"}]},
    ]
    assert shown(*above, ASKED, above[0], instructions="a") == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "b"},
    ]
    assert [message["role"] for message in shown(*above, ASKED)] == ["developer", "system", "user"], "as they came"


def test_reasoning_that_has_only_a_summary_and_reasoning_that_cannot_be_read() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    assert shown(summary)[0]["reasoning_content"] == "so"
    sealed = read({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"})
    assert (sealed.messages, list(sealed.unread)) == ([], ["input.encrypted_content"])


def test_what_nobody_knows_is_named_once() -> None:
    assert list(read({**ASKED, "mood": 1}, {**ASKED, "mood": 2}).unread) == ["input.mood"]


def test_messages_and_calls_know_their_items() -> None:
    messages = read(ASKED, THOUGHT, CALL, CUSTOM, RESULT, instructions="a")
    assert [messages.place_of(index) for index in range(4)] == ["instructions", "input[0]", "input[1]", "input[4]"]
    assert [messages.place_of(2, 0), messages.place_of(2, 1)] == ["input[2]", "input[3]"]


@pytest.mark.parametrize(
    ("item", "param", "error"),
    [
        ({"role": "user"}, "input[0].content", InvalidRequest),
        ({"type": "message", "content": "a"}, "input[0].role", InvalidRequest),
        ({**CALL, "call_id": None}, "input[0].call_id", InvalidRequest),
        ({**CALL, "arguments": None}, "input[0].arguments", InvalidRequest),
        ({**CUSTOM, "input": None}, "input[0].input", InvalidRequest),
        ({**RESULT, "output": None}, "input[0].output", InvalidRequest),
        ({**RESULT, "call_id": None}, "input[0].call_id", InvalidRequest),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text", InvalidRequest),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].type", UnsupportedParameter),
        ({"type": "web_search_call", "id": "ws"}, "input[0].type", UnsupportedParameter),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type", UnsupportedParameter),
        ({"id": "msg_1"}, "input[0].type", UnsupportedParameter),
    ],
)
def test_refusals_name_the_field(item: dict[str, Any], param: str, error: type[InvalidRequest]) -> None:
    with pytest.raises(error) as refused:
        read(item)
    assert refused.value.param == param
    assert param in refused.value.message
