from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.api.calls.legacy_functions import legacy_names, with_tools
from service.protocol.chat import ChatPromptFields
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, chat, error_of, events_of
from tests.text import tiny_tokenizers

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS: list[dict[str, Any]] = [{"name": "now"}, {"name": "rain", "parameters": CITY}]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
RAIN = '<tool_call>\n{"name": "rain", "arguments": {"city": "Oslo"}}\n</tool_call>'
CALLED = {"name": "rain", "arguments": '{"city": "Oslo"}'}
TOO_LONG = "a" * (256 * 1024 + 1)
"""The arguments of a call."""
ASKED = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


def post(server: RunningServer, path: str = CHAT, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}{path}", json=chat("hi", **fields))


def whole(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in events_of(post(server, stream=True, **fields).text)]


def prompt_ids(server: RunningServer, **fields: Any) -> list[int]:
    return list(post(server, return_token_ids=True, **fields).json()["prompt_token_ids"])


def test_a_call_whole_and_streamed(able: RunningServer) -> None:
    able.say(f"Well.{RAIN}")
    choice = whole(able, functions=FUNCTIONS)
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == CALLED
    assert choice["message"]["content"] == "Well."
    assert "tool_calls" not in choice["message"]

    *choices, end = streamed(able, functions=FUNCTIONS)
    deltas = [each["delta"] for each in choices]
    assert (end["delta"], end["finish_reason"]) == ({}, "function_call")
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    first, *rest = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert first["name"] == "rain"
    assert all(set(each) == {"arguments"} for each in rest)
    assert "".join(each["arguments"] for each in [first, *rest]) == CALLED["arguments"]
    assert not any("tool_calls" in delta for delta in deltas)


def test_an_answer_that_calls_nothing(able: RunningServer) -> None:
    able.say("It is dry.")
    choice = whole(able, functions=FUNCTIONS)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is dry.", "stop")
    assert "function_call" not in choice["message"]


@pytest.mark.parametrize("choice", ["auto", "none", None, {"name": "rain"}], ids=str)
def test_the_prompt_is_that_of_tools(able: RunningServer, choice: Any) -> None:
    named = {"type": "function", "function": choice} if isinstance(choice, dict) else choice
    of_tools = prompt_ids(able, tools=TOOLS, tool_choice=named, max_tokens=1)
    of_functions = prompt_ids(able, functions=FUNCTIONS, function_call=choice, max_tokens=1)
    assert of_functions == of_tools
    tokenized = post(able, "/tokenize", functions=FUNCTIONS, function_call=choice).json()["tokens"]
    assert tokenized == of_tools


def test_with_none_calls_are_text(able: RunningServer) -> None:
    able.say(RAIN)
    choice = whole(able, functions=FUNCTIONS, function_call="none")
    assert (choice["message"]["content"], choice["finish_reason"]) == (RAIN, "stop")


def test_a_named_function_is_called_and_only_once(able: RunningServer) -> None:
    """Whatever the model would say beside it."""
    able.say(f"{RAIN}\n{RAIN} Well.")
    choice = whole(able, functions=FUNCTIONS, function_call={"name": "rain"})
    assert choice["finish_reason"] == "function_call"
    assert (choice["message"]["function_call"], choice["message"]["content"]) == (CALLED, None)


def test_a_second_call_is_not_made(able: RunningServer) -> None:
    able.say(f"{RAIN}\n{RAIN}")
    choice = whole(able, functions=FUNCTIONS)
    assert choice["message"]["function_call"] == CALLED


def test_a_clients_own_grammar_may_write_two_calls_of_which_the_first_is_told(able: RunningServer) -> None:
    one = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    able.say(one + one)
    form = {"functions": FUNCTIONS, "choice": [one + one], "return_token_ids": True}
    choice = whole(able, **form)
    assert choice["message"]["function_call"] == {"name": "now", "arguments": "{}"}
    choices = streamed(able, **form)
    told = [each["delta"]["function_call"] for each in choices if "function_call" in each["delta"]]
    assert "".join(each["arguments"] for each in told) == "{}"
    assert [i for each in choices for i in each.get("token_ids", [])] == choice["token_ids"]


def test_what_was_said_can_be_said_back(able: RunningServer) -> None:
    """The template sees what it sees of a chat with tools; arguments may be an object, as there."""
    older = [
        ASKED,
        {"role": "assistant", "content": None, "function_call": CALLED},
        {"role": "function", "name": "rain", "content": "dry"},
    ]
    call = {"id": "call00001", "type": "function", "function": CALLED}
    newer = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "rain", "tool_call_id": "call00001", "content": "dry"},
    ]
    able.say("It is dry.")
    of_tools = prompt_ids(able, messages=newer, tools=TOOLS)
    assert prompt_ids(able, messages=older, functions=FUNCTIONS) == of_tools
    assert prompt_ids(able, messages=older, tools=TOOLS) == of_tools, "an old chat goes on with tools"
    older[1] = {"role": "assistant", "function_call": {**CALLED, "arguments": {"city": "Oslo"}}}
    assert prompt_ids(able, messages=older, functions=FUNCTIONS) == of_tools


def test_results_have_the_id_of_the_last_call_and_mistrals_length() -> None:
    called = {"role": "assistant", "function_call": CALLED}
    result = {"role": "function", "name": "rain", "content": "dry"}
    fields = ChatPromptFields.model_validate({"messages": [result, called, result, called, result]})
    before, first, its_result, second, last = with_tools(fields).messages
    assert first.tool_calls is not None
    assert second.tool_calls is not None
    assert before.tool_call_id is None
    assert its_result.tool_call_id == first.tool_calls[0].id
    assert last.tool_call_id == second.tool_calls[0].id != its_result.tool_call_id
    assert len(str(last.tool_call_id)) == 9


def test_a_template_that_knows_the_old_role_gets_it() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'function' %}!{% endif %}{{ m.content }};{% endfor %}"
    )
    with running(Scene(chat_template=template)) as server:
        ids = prompt_ids(server, messages=[ASKED, {"role": "function", "name": "f", "content": "1"}])
        assert server.tokenizer.decode(ids) == "user:hi;function:!1;"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"functions": FUNCTIONS, "tool_choice": "none"}, "functions"),
        ({"tools": TOOLS, "function_call": "auto"}, "function_call"),
        ({"function_call": {"name": "now"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "required"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "snow"}}, "function_call"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [{"name": "a", "parameters": {"type": "array"}}]}, "functions[0].parameters"),
        ({"functions": [{"name": "a"}, {"name": "a"}]}, "functions"),
        ({"functions": [{"name": "a"}] * 1000}, "functions"),
        ({"functions": [{"description": "a"}]}, "functions[0].name"),
        ({"messages": [{**ASKED, "function_call": CALLED}]}, "messages[0].function_call"),
        (
            {"messages": [ASKED, {"role": "assistant", "function_call": {"name": "f", "arguments": TOO_LONG}}]},
            "messages[1].function_call.arguments",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "function_call": CALLED, "tool_calls": [{"function": CALLED, "id": "1"}]}
                ]
            },
            "messages[0].function_call",
        ),
    ],
)
def test_refusals_name_the_field_that_the_client_wrote(able: RunningServer, fields: dict[str, Any], param: str) -> None:
    for path in (CHAT, "/tokenize"):
        response = post(able, path, **fields)
        assert response.status_code == 400
        error = error_of(response)
        assert error["param"] == param
        assert "tools[" not in error["message"]


def test_fields_that_nobody_knows_are_named_as_they_were_written(able: RunningServer) -> None:
    able.say("fine")
    messages = [ASKED, {"role": "assistant", "function_call": {**CALLED, "x": 1}}]
    response = post(able, messages=messages, functions=[{"name": "now", "y": 1}])
    assert response.headers["x-ignored-params"] == "messages.function_call.x,functions.y"


def test_a_chat_of_tools_keeps_its_names() -> None:
    tool_call = {"id": "1", "function": CALLED}
    fields = ChatPromptFields.model_validate(
        {"model": MODEL, "messages": [{"role": "assistant", "tool_calls": [tool_call]}], "tools": TOOLS}
    )
    name_of = legacy_names(fields)
    for path in ("tools", "tools[0].function.name", "tool_choice", "messages[0].tool_calls[0].function.arguments"):
        assert name_of(path) == path
