from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.api.calls.message_turns import chat_messages, check_continued
from service.api.calls.wire_parsing import parse
from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.messages import MessagesPromptFields
from service.text.chat_messages import check_messages
from service.text.chat_template import ChatTemplate
from tests.text import tiny_tokenizers

CONFIG = ApiConfig(served_model_names=("m",))
TEMPLATE = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": "ä"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "20"}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def turns(*messages: Any, config: ApiConfig = CONFIG, **fields: Any) -> list[dict[str, Any]]:
    """The chat's messages, of each the fields that it has. A chat takes them as they are."""
    made = chat_messages(parse(MessagesPromptFields, {"model": "m", "messages": list(messages), **fields}), config)
    check_messages(made, TEMPLATE)
    return [message.model_dump(exclude_none=True) for message in made]


def test_text_is_text_however_it_is_written() -> None:
    assert turns({"role": "user", "content": "a"}) == turns(user(text("a"))) == [{"role": "user", "content": "a"}]


def test_blocks_of_text_are_lines() -> None:
    assert turns(user(text("a"), text("b"))) == [{"role": "user", "content": "a\nb"}]


def test_what_the_assistant_thinks_says_and_calls_is_one_message() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "of another server"}
    redacted = {"type": "redacted_thinking", "data": "opaque"}
    said = assistant(thinking, redacted, text("sure"), CALL, {**CALL, "id": "toolu_2", "input": {}})
    function = {"name": "f", "arguments": '{"b":1,"a":"ä"}'}
    assert turns(said) == [
        {
            "role": "assistant",
            "content": "sure",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": function},
                {"id": "toolu_2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        }
    ]


def test_results_of_tools_are_messages_before_what_the_user_says() -> None:
    second = {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("a"), text("b")]}
    assert turns(user(RESULT, second, text("and?"))) == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "20"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "a\nb"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": None}, ""),
        ({"content": ""}, ""),
        ({"content": []}, ""),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": [text("a"), text("b")], "is_error": True}, "Error: a\nb"),
        ({"content": "fine", "is_error": False}, "fine"),
    ],
)
def test_a_result_may_be_empty_or_an_error(result: dict[str, Any], shown: str) -> None:
    assert turns(user({**RESULT, **result}))[0]["content"] == shown


def test_neighbours_of_one_role_are_one_message() -> None:
    made = turns(user(text("a")), user(text("b")), assistant(text("c")), assistant(text("d"), CALL), user(RESULT))
    assert [message["role"] for message in made] == ["user", "assistant", "tool"]
    assert (made[0]["content"], made[1]["content"], len(made[1]["tool_calls"])) == ("a\nb", "c\nd", 1)


def test_the_system_prompt_is_one_message_without_what_changes_with_every_request() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.37; cch=1f2e3;"
    cached = {**text("You code."), "cache_control": {"type": "ephemeral"}}
    blocks = turns(user(text("a")), system=[text(billing), cached, text("Be brief.")])
    assert blocks[0] == {"role": "system", "content": "You code.\nBe brief."}
    assert turns(system("You code."), user(text("a")), system="Hi.")[0]["content"] == "Hi.\nYou code."
    assert [message["role"] for message in turns(user(text("a")), system=billing)] == ["user"]
    assert [message["role"] for message in turns(user(text("a")))] == ["user"]


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([user(text("a")), system("s")], [("user", "a\ns")]),
        ([user(RESULT), system("s")], [("tool", "20\ns")]),
        (
            [user(text("a")), assistant(text("b")), system("s"), user(text("c"))],
            [("user", "a"), ("assistant", "b"), ("user", "c\ns")],
        ),
        (
            [user(text("a")), assistant(CALL), system("s"), system("t"), user(RESULT)],
            [("user", "a"), ("assistant", ""), ("tool", "20\ns\nt")],
        ),
        (
            [user(text("a")), assistant(text("b")), system("s"), assistant(text("c"))],
            [("user", "a"), ("assistant", "b"), ("user", "s"), ("assistant", "c")],
        ),
        ([user(text("a")), assistant(text("b")), system("s")], [("user", "a"), ("assistant", "b"), ("user", "s")]),
    ],
)
def test_a_system_message_in_the_midst_joins_the_users_turn(messages: list[Any], shown: list[Any]) -> None:
    assert [(message["role"], message["content"]) for message in turns(*messages)] == shown


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    """As long as each request ends with a turn of the user, so that the prefix cache finds what was there."""
    conversation = [user(text("a"), text("b")), assistant(text("c"), CALL), user(RESULT), system("s")]
    conversation += [assistant(text("d")), user(text("e")), assistant(CALL), system("t"), user(RESULT, text("f"))]
    whole = turns(*conversation, system="S")
    for end in (1, 4, 6, 9):
        shorter = turns(*conversation[:end], system="S")
        assert whole[: len(shorter)] == shorter


@pytest.mark.parametrize(
    ("messages", "continues"),
    [
        ([user(text("a"))], False),
        ([user(text("a")), assistant(text("b"))], True),
        ([user(text("a")), {"role": "assistant", "content": "b"}], True),
        ([assistant(CALL), user(RESULT)], False),
        ([], False),
    ],
)
def test_an_answer_goes_on_with_what_the_assistant_has_begun(messages: list[Any], continues: bool) -> None:
    fields = parse(MessagesPromptFields, {"model": "m", "messages": messages})
    assert check_continued(fields.messages) is continues


def test_it_cannot_go_on_with_a_call() -> None:
    fields = parse(MessagesPromptFields, {"model": "m", "messages": [user(text("a")), assistant(CALL)]})
    with pytest.raises(InvalidRequest) as refusal:
        check_continued(fields.messages)
    assert refusal.value.param == "messages[1].content"


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([user(text("a"), IMAGE)], "messages[0].content[1].type"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].type"),
        ([user({**RESULT, "content": [text("a"), IMAGE]})], "messages[0].content[0].content[1].type"),
        ([user({"type": "made up"})], "messages[0].content[0].type"),
        ([user(CALL)], "messages[0].content[0].type"),
        ([assistant(RESULT)], "messages[0].content[0].type"),
        ([{"role": "system", "content": [IMAGE]}], "messages[0].content[0].type"),
    ],
)
def test_blocks_that_are_not_supported_are_refused_by_name(messages: list[Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        turns(*messages)
    assert refusal.value.param == param
    assert param in refusal.value.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([user()], "messages[0].content"),
        ([user(text("a")), assistant()], "messages[1].content"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([assistant({"type": "thinking"})], "messages[0].content[0].thinking"),
        ([assistant({"type": "redacted_thinking", "data": ""})], "messages[0].content[0].data"),
        ([assistant({**CALL, "id": ""})], "messages[0].content[0].id"),
        ([assistant({**CALL, "name": ""})], "messages[0].content[0].name"),
        ([assistant({**CALL, "input": None})], "messages[0].content[0].input"),
        ([assistant({**CALL, "input": {"a": "x" * 100}})], "messages[0].content[0].input"),
        ([user({**RESULT, "tool_use_id": ""})], "messages[0].content[0].tool_use_id"),
        ([user({**RESULT, "content": [{"type": "text"}]})], "messages[0].content[0].content[0].text"),
    ],
)
def test_a_block_that_lacks_something_is_refused_by_name(messages: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        turns(*messages, config=replace(CONFIG, max_arguments_characters=100))
    assert refusal.value.param == param
    assert param in refusal.value.message
