from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.api.calls.chat_prompting import TEMPLATE_OPTIONS
from service.config import ApiConfig
from service.text.chat_template import ChatTemplate
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, chat, error_of
from tests.text import tiny_tokenizers

NO_THOUGHT = "assistant\n<think>\n\n</think>\n\n"
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


def prompt_of(server: RunningServer, body: dict[str, Any]) -> str:
    """The prompt as text, without special tokens."""
    response = httpx.post(f"{server.base_url}{CHAT}", json={**body, "return_token_ids": True})
    assert response.status_code == 200, response.text
    return server.tokenizer.decode(response.json()["prompt_token_ids"])


def refusal(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.base_url}{CHAT}", json=chat("hi", **fields))
    assert response.status_code == 400
    return error_of(response)


def test_chat_template_kwargs(able: RunningServer) -> None:
    body = chat("hi", chat_template_kwargs={"enable_thinking": False})
    assert prompt_of(able, body) == "user\nhi\nassistant\n<think>\n\n</think>\n\n"


def test_the_server_may_set_defaults_of_the_template() -> None:
    config = ApiConfig(served_model_names=(MODEL,), default_chat_template_kwargs={"enable_thinking": False})
    with running(Scene(config=config, chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        assert prompt_of(server, chat("hi")).endswith(NO_THOUGHT)
        asked = chat("hi", chat_template_kwargs={"enable_thinking": True})
        assert prompt_of(server, asked) == "user\nhi\nassistant\n"
        assert prompt_of(server, chat("hi", reasoning_effort="low")) == "user\nhi\nassistant\n<think>\n"


@pytest.mark.parametrize(
    ("effort", "ending"),
    [
        ("none", NO_THOUGHT),
        ("minimal", "assistant\n<think>\n"),
        ("high", "assistant\n<think>\n"),
        (None, "assistant\n"),
    ],
)
def test_reasoning_effort_sets_what_the_template_takes(able: RunningServer, effort: str | None, ending: str) -> None:
    assert prompt_of(able, chat("hi", reasoning_effort=effort)).endswith(ending)


def test_reasoning_effort_goes_to_a_template_that_names_it() -> None:
    template = "{{ messages[0].content }} {{ reasoning_effort | default('medium') }}"
    with running(Scene(chat_template=template)) as server:
        assert prompt_of(server, chat("hi", reasoning_effort="high")) == "hi high"
        assert prompt_of(server, chat("hi")) == "hi medium"
        both = chat("hi", reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"})
        assert prompt_of(server, both) == "hi low"


def test_a_reasoning_effort_that_nothing_heeds() -> None:
    with running(Scene()) as server:
        assert refusal(server, reasoning_effort="low")["code"] == "unsupported_parameter"
        assert prompt_of(server, chat("hi", reasoning_effort="none"))
    with running(Scene(chat_template="{{ messages[0].content }}<think>")) as server:
        assert refusal(server, reasoning_effort="none")["param"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"messages": "x"}, "chat_template_kwargs.messages"),
        ({"bos_token": "x"}, "chat_template_kwargs.bos_token"),
        ({"x" * 100: 1}, "chat_template_kwargs." + "x" * 64),
        ({"enable_thinking": [1]}, "chat_template_kwargs.enable_thinking"),
        ({"date_string": "x" * 257}, "chat_template_kwargs.date_string"),
    ],
)
def test_template_options_that_are_not_allowed(able: RunningServer, kwargs: dict[str, Any], param: str) -> None:
    assert refusal(able, chat_template_kwargs=kwargs)["param"] == param


def test_no_option_is_a_variable_of_ours() -> None:
    assert TEMPLATE_OPTIONS.isdisjoint({"messages", "tools", "documents", "add_generation_prompt", "namespace"})


def test_continue_final_message(able: RunningServer) -> None:
    able.say(" three")
    body = chat("count", continue_final_message=True)
    body["messages"].append({"role": "assistant", "content": "one two"})
    assert prompt_of(able, body) == "user\ncount\nassistant\none two"


def test_add_generation_prompt(able: RunningServer) -> None:
    assert prompt_of(able, chat("hi", add_generation_prompt=False)) == "user\nhi\n"
    error = refusal(able, add_generation_prompt=True, continue_final_message=True)
    assert error["param"] == "continue_final_message"


def test_a_message_without_text_cannot_be_continued(able: RunningServer) -> None:
    call = {"function": {"name": "now", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert refusal(able, messages=messages, continue_final_message=True)["param"] == "continue_final_message"


def test_tools_and_their_results_are_in_the_prompt(able: RunningServer) -> None:
    body = chat("time?", tools=[NOW])
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"tz":"UTC"}'}}
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    prompt = prompt_of(able, body)
    assert '{"type": "function", "function": {"name": "now"}}' in prompt
    assert '<tool_call>{"name": "now", "arguments": {"tz": "UTC"}}</tool_call>' in prompt
    assert "tool\nnoon" in prompt


def test_an_agent_works_with_a_template_that_knows_no_tools() -> None:
    """Shown, called, told of the result: as the text of messages."""
    with running(Scene(chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")) as server:
        server.say('<tool_call>\n{"name": "now", "arguments": {"tz": "UTC"}}\n</tool_call>')
        body = chat("time?", tools=[NOW])
        first = httpx.post(f"{server.base_url}{CHAT}", json=body).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        (call,) = first["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {"tz": "UTC"})
        body["messages"] += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "noon"}]
        prompt = prompt_of(server, body)
    assert prompt.startswith("system: You may call functions.")
    assert '<tools>\n{"name": "now"}\n</tools>' in prompt
    assert 'assistant: <tool_call>\n{"name": "now", "arguments": {"tz": "UTC"}}\n</tool_call>\n' in prompt
    assert prompt.endswith("user: <tool_response>\nnoon\n</tool_response>\n")


def test_with_tool_choice_none_the_model_is_not_shown_the_tools(able: RunningServer) -> None:
    assert prompt_of(able, chat("hi", tools=[NOW], tool_choice="none")) == "user\nhi\nassistant\n"


def test_a_request_may_not_bring_its_own_template(able: RunningServer) -> None:
    assert refusal(able, chat_template="{{ messages }}")["code"] == "unsupported_parameter"


LONG = "word " * 1000


def described(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def said(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": "x", **fields}, {"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    "fields",
    [
        said(content=LONG),
        said(content=[{"type": "text", "text": LONG}]),
        said(reasoning_content=LONG),
        said(name=LONG),
        said(tool_calls=[{"id": LONG, "function": {"name": "f", "arguments": "{}"}}]),
        said(tool_calls=[{"function": {"name": "f", "arguments": json.dumps({"a": LONG})}}]),
        described(description=LONG),
        described(parameters={"type": "object", "description": LONG}),
    ],
    ids=lambda fields: str(fields)[:90],
)
def test_long_text_is_not_rendered_on_the_event_loop(
    able: RunningServer, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """In whatever field it stands."""
    threads = []
    render = ChatTemplate.render

    def noted(template: ChatTemplate, *arguments: Any, **options: Any) -> str:
        threads.append(threading.current_thread().name)
        return render(template, *arguments, **options)

    monkeypatch.setattr(ChatTemplate, "render", noted)
    answer = httpx.post(f"{able.base_url}{CHAT}", json={**chat("hi"), **fields})
    assert answer.status_code in (200, 400), answer.text
    assert len(threads) == 1
    assert threads[0].startswith("headrace-prompt")


def test_a_tool_nested_too_deeply_is_refused(able: RunningServer) -> None:
    nested: object = {}
    for _ in range(300):
        nested = [nested]
    assert refusal(able, **described(own=nested))["param"] == "tools"
