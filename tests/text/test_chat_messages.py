from __future__ import annotations

from typing import Any

import pytest

from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatMessage
from service.text.call_arguments import arguments_object
from service.text.chat_messages import check_messages, num_characters, template_messages
from service.text.chat_template import ChatTemplate

TEMPLATE = ChatTemplate("{{ messages }}", {})


CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"tz": "UTC"}'}}

MOST = 200_000


def message(**fields: Any) -> ChatMessage:
    return ChatMessage.model_validate({"role": "user", "content": "hi", **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"content": None}, "messages[1].content"),
        ({"content": []}, "messages[1].content"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0].type"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "messages[1].content[1].text"),
        ({"role": "tool"}, "messages[1].tool_call_id"),
        ({"role": "function"}, "messages[1].name"),
        ({"tool_calls": [CALL]}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "assistant", "content": None, "reasoning": ""}, "messages[1].content"),
        ({"content": None, "reasoning": "hm"}, "messages[1].content"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_messages([message(), message(**fields)], TEMPLATE)
    assert refusal.value.param == param


def test_no_messages_at_all() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_messages([], TEMPLATE)
    assert refusal.value.param == "messages"


def test_unsupported_is_said_with_its_own_code() -> None:
    with pytest.raises(UnsupportedParameter):
        check_messages([message(audio={"id": "x"})], TEMPLATE)


def test_text_parts_become_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template_messages([message(content=parts)], TEMPLATE, MOST) == [{"role": "user", "content": "one\ntwo"}]


def test_names_are_kept() -> None:
    assert template_messages([message(name="Ann")], TEMPLATE, MOST)[0]["name"] == "Ann"


def test_developer_is_system_for_templates_that_do_not_know_it() -> None:
    developer = [message(role="developer")]
    assert template_messages(developer, TEMPLATE, MOST)[0]["role"] == "system"
    knowing = ChatTemplate("{% if messages[0].role == 'developer' %}{% endif %}", {})
    assert template_messages(developer, knowing, MOST)[0]["role"] == "developer"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_answer_that_was_cut_while_it_thought_may_be_said_back(field: str) -> None:
    thought = message(role="assistant", content=None, **{field: "hm"})
    check_messages([message(), thought, message()], TEMPLATE)
    (told,) = template_messages([thought], TEMPLATE, MOST)
    assert told == {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm"}


def test_tool_calls_reach_the_template_with_their_arguments_as_objects() -> None:
    called = message(role="assistant", content=None, tool_calls=[CALL], reasoning_content="hm")
    answered = message(role="tool", content="12:00", tool_call_id="call_1")
    check_messages([called, answered], TEMPLATE)
    assert template_messages([called, answered], TEMPLATE, MOST) == [
        {
            "role": "assistant",
            "content": "",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": {"tz": "UTC"}}}
            ],
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "call_1"},
    ]
    assert num_characters([called, answered]) > len("12:00") + len('{"tz": "UTC"}')


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"tz": "U', "no JSON"])
def test_arguments_that_are_no_object_are_what_can_be_read_of_them(arguments: str) -> None:
    call = {"function": {"name": "now", "arguments": arguments}}
    (said,) = template_messages([message(role="assistant", tool_calls=[call])], TEMPLATE, MOST)
    shown = arguments_object(arguments, keeps_cut_text=True)
    assert said["tool_calls"] == [{"type": "function", "function": {"name": "now", "arguments": shown}}]


def test_arguments_may_have_so_many_characters() -> None:
    call = {"function": {"name": "now", "arguments": '{"a": 1}'}}
    assert template_messages([message(role="assistant", tool_calls=[call])], TEMPLATE, 8)
    with pytest.raises(InvalidRequest, match="at most 7 characters") as refusal:
        template_messages([message(role="assistant", tool_calls=[call])], TEMPLATE, 7)
    assert refusal.value.param == "messages[0].tool_calls[0].function.arguments"


def test_arguments_may_be_objects_and_reasoning_may_have_either_name() -> None:
    function = {"name": "now", "arguments": {"tz": "UTC"}}
    called = [
        message(role="assistant", content=None, tool_calls=[{**CALL, "function": function}], reasoning="hm"),
        message(role="assistant", content=None, tool_calls=[CALL], reasoning_content="hm"),
    ]
    check_messages(called, TEMPLATE)
    as_object, as_text = template_messages(called, TEMPLATE, MOST)
    assert as_object == as_text
    assert num_characters(called[:1]) == pytest.approx(num_characters(called[1:]), abs=2)
    with pytest.raises(InvalidRequest) as refusal:
        template_messages(called[:1], TEMPLATE, 8)
    assert refusal.value.param == "messages[0].tool_calls[0].function.arguments"


def test_arguments_that_are_nested_too_deeply_are_refused_by_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"a": deep}
    call = {**CALL, "function": {"name": "now", "arguments": deep}}
    with pytest.raises(InvalidRequest) as refusal:
        check_messages([message(role="assistant", tool_calls=[call])], TEMPLATE)
    assert refusal.value.param == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize("role", ["king", "role", "content", "", "x" * 1000], ids=lambda role: role[:9])
def test_a_role_that_the_template_does_not_know_is_refused(role: str) -> None:
    template = ChatTemplate("{% if messages[0]['role'] in ('ipython', 'critic') %}{{ messages[0] }}{% endif %}", {})
    check_messages([message(role="critic"), message(role="ipython")], template)
    with pytest.raises(InvalidRequest) as refusal:
        check_messages([message(role=role)], template)
    assert refusal.value.param == "messages[0].role"
    assert len(refusal.value.message) < 250
    assert "critic" in refusal.value.message
