"""Several conversations in one call: each is answered as it is alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.config import ApiConfig
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, chat, error_of
from tests.text import tiny_tokenizers

ASKED = {"role": "user", "content": "a"}
BATCH = "/v1/chat/completions/batch"
QUESTIONS = ("hello", "a longer question, of more tokens", "")


def conversations(*questions: str) -> list[list[dict[str, Any]]]:
    return [chat(question)["messages"] for question in questions]


def batch(http: httpx.Client, *questions: str, **fields: Any) -> httpx.Response:
    return http.post(BATCH, json={"model": MODEL, "messages": conversations(*questions), "max_tokens": 9, **fields})


def answer_by_the_prompt(server: RunningServer) -> None:
    """What is said depends on the prompt, and goes on and on."""
    size = server.tokenizer.num_tokens
    server.play(lambda prompt, so_far, seed: 3 + (sum(prompt) + 7 * len(so_far)) % (size - 3))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}},
        {"stop": ["e"], "include_stop_str_in_output": True, "return_token_ids": True},
        {"seed": 5, "temperature": 1.0, "n": 1, "tools": [], "tool_choice": "none", "stream": False},
    ],
)
def test_each_choice_is_the_answer_to_its_conversation(
    server: RunningServer, http: httpx.Client, fields: dict[str, Any]
) -> None:
    answer_by_the_prompt(server)
    together = batch(http, *QUESTIONS, **fields)
    assert together.status_code == 200, together.text
    answer = together.json()
    alone = [http.post(CHAT, json=chat(question, max_tokens=9, **fields)).json() for question in QUESTIONS]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice, single in zip(answer["choices"], alone, strict=True):
        assert choice == single["choices"][0] | {"index": choice["index"]}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(single["usage"][name] for single in alone)
    assert answer.keys() == alone[0].keys()
    assert answer["object"] == "chat.completion"


def test_echo_is_of_each_conversations_own_last_message(server: RunningServer, http: httpx.Client) -> None:
    server.say("!")
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It is"}]
    body = {"messages": [begun, *conversations("hello")], "echo": True, "max_tokens": 5}
    choices = http.post(BATCH, json=body).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["It is!", "!"]


def test_reasoning_is_told_apart_in_each() -> None:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        server.say("so</think>four")
        with httpx.Client(base_url=server.base_url) as http:
            answer = batch(http, "a", "b", chat_template_kwargs={"thinking": True})
        messages = [choice["message"] for choice in answer.json()["choices"]]
        assert [(message["reasoning"], message["content"]) for message in messages] == [("so", "four")] * 2


def test_conversations_that_leave_the_reasoning_open_and_others_are_not_one_call() -> None:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        begun = [ASKED, {"role": "assistant", "content": "<think>"}]
        ended = [*begun[:1], {"role": "assistant", "content": "It is"}]
        options = {"continue_final_message": True, "add_generation_prompt": False}
        answer = httpx.post(f"{server.base_url}{BATCH}", json={"messages": [begun, ended], **options})
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True, "beam_width": 2}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [[]] * 129}, "messages"),
        ({"messages": [[ASKED], []]}, "messages[1]"),
        ({"messages": [[ASKED], [{"role": "user"}]]}, "messages[1][0].content"),
        ({"messages": [ASKED]}, "messages[0]"),
        (
            {"messages": [[ASKED], [{"role": "user", "content": 5}]]},
            "messages[1][0].content",
        ),
    ],
)
def test_refusals_name_the_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = batch(http, "hello", **fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert param in error_of(answer)["message"]


def test_all_messages_together_are_no_more_than_a_chats(server: RunningServer, http: httpx.Client) -> None:
    most = ApiConfig((MODEL,)).max_messages
    message = {"role": "user", "content": ""}
    body = {"messages": [[message] * (most // 2), [message] * (most // 2 + 1)], "max_tokens": 1}
    answer = http.post(BATCH, json=body)
    assert answer.status_code == 400
    assert f"at most {most} messages" in error_of(answer)["message"]


def test_who_leaves_leaves_nothing_behind(server: RunningServer, http: httpx.Client) -> None:
    answer_by_the_prompt(server)
    server.executor.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        http.post(BATCH, json={"messages": conversations("a", "b", "c")}, timeout=0.3)
    server.executor.gate.set()
    server.check_idle()


def test_the_trace_tells_of_all_conversations(server: RunningServer, http: httpx.Client) -> None:
    server.say("!")
    answer = batch(http, "a", "b", request_id="mine")
    trace = http.get("/v1/requests/mine/trace").json()
    assert trace["id"] == answer.json()["id"]
    assert len(trace["prompts"]) == 2
    assert json.loads(answer.text)["choices"][1]["message"]["content"] == "!"
