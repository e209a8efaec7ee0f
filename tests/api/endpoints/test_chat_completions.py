from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of


def post(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def stream(http: httpx.Client, body: dict[str, Any]) -> list[Any]:
    response = http.post(CHAT, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def test_answers(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("Good day, 你好")
    body = post(http, chat("hi"))
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Good day, 你好",
                "refusal": None,
                "reasoning": None,
                "reasoning_content": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ]
    assert (body["service_tier"], body["prompt_logprobs"], body["prompt_token_ids"]) == (None, None, None)
    assert body["usage"]["completion_tokens"] == len(ids)


def test_the_prompt_is_the_rendered_template(server: RunningServer, http: httpx.Client) -> None:
    ids = post(http, chat("hi <|im_end|> there", return_token_ids=True))["prompt_token_ids"]
    assert [token_id for token_id in ids if token_id in server.tokenizer.special_ids] == [1, 2, 1]
    assert server.tokenizer.decode(ids) == "user\nhi <|im_end|> there\nassistant\n"


def test_generates_to_the_end_of_the_context_by_default(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    usage = post(http, chat("hi"))["usage"]
    assert usage["total_tokens"] == 2048


def test_max_completion_tokens_wins(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    assert post(http, chat("hi", max_tokens=9, max_completion_tokens=4))["usage"]["completion_tokens"] == 4


def test_streams(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("one two 你好")
    chunks = stream(http, chat("hi", return_token_ids=True, n=2))
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert mine[-1]["delta"] == {}
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
        assert all(set(choice["delta"]) == {"content"} and choice["delta"]["content"] for choice in mine[1:-1])
        assert "".join(choice["delta"]["content"] for choice in mine[:-1]) == "one two 你好"
        assert [token_id for choice in mine for token_id in choice.get("token_ids", [])] == ids
    with_prompt = [chunk["choices"][0] for chunk in chunks if "prompt_token_ids" in chunk]
    assert [(choice["index"], choice["delta"].get("role")) for choice in with_prompt] == [(0, "assistant")]


def test_streams_an_empty_answer(server: RunningServer, http: httpx.Client) -> None:
    server.say("")
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(http, chat("hi"))]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


def test_streamed_is_unstreamed(server: RunningServer, http: httpx.Client) -> None:
    server.say("The naïve 👩‍🚀 said: stop here, not there.")
    for stop in (None, "here", ["🚀", "not"], "zzz"):
        body = chat("hi", stop=stop, max_tokens=30)
        whole = post(http, body)["choices"][0]
        chunks = stream(http, body)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["message"]["content"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_stream_usage(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("one two")
    *chunks, last = stream(http, chat("hi", stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(ids)
    both = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream(http, chat("hi", stream_options=both))]
    assert (counts[0], counts[-1]) == (0, len(ids)), "the role comes before any token"
    assert counts == sorted(counts)
    for options in ({"include_usage": False, "continuous_usage_stats": True}, {"continuous_usage_stats": True}):
        assert not any("usage" in chunk for chunk in stream(http, chat("hi", stream_options=options)))


def test_usage_may_be_forced_on_streams() -> None:
    """In every chunk for those that ask for nothing, as at vLLM; else at the end at least."""
    with running(Scene(config=replace(Scene().config, force_usage=True))) as server:
        ids = server.say("one two")
        with httpx.Client(base_url=server.base_url) as http:
            counts = [chunk["usage"]["completion_tokens"] for chunk in stream(http, chat("hi"))]
            assert (counts[0], counts[-1]) == (0, len(ids))
            assert counts == sorted(counts)
            for options in ({"include_usage": False}, {"include_usage": True}):
                *chunks, last = stream(http, chat("hi", stream_options=options))
                assert all(chunk["usage"] is None for chunk in chunks)
                assert last["usage"]["completion_tokens"] == len(ids)
            *_, last = events_of(http.post(COMPLETIONS, json=completion(stream=True)).text)
            assert last["usage"]["completion_tokens"] == len(ids)


def test_tokens_may_be_named_by_their_ids_in_every_answer() -> None:
    with running(Scene(config=replace(Scene().config, tokens_as_ids=True))) as server:
        ids = server.say("one")
        body = {"logprobs": True, "top_logprobs": 1}
        answer = httpx.post(f"{server.base_url}{CHAT}", json=chat("hi", **body)).json()
        assert [each["token"] for each in answer["choices"][0]["logprobs"]["content"]] == [f"token_id:{i}" for i in ids]


def test_a_model_without_a_template_refuses_chat() -> None:
    with running(Scene(chat_template=None)) as server, httpx.Client(base_url=server.base_url) as http:
        response = http.post(CHAT, json=chat("hi"))
        assert response.status_code == 400
        assert "no chat template" in error_of(response)["message"]


def test_a_conversation_that_does_not_fit(server: RunningServer, http: httpx.Client) -> None:
    response = http.post(CHAT, json=chat("hello " * 3000))
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert error_of(response)["param"] == "messages"


def test_a_conversation_that_can_never_fit_is_refused_without_reading_it(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    encode = server.tokenizer.encode_rendered
    monkeypatch.setattr(server.tokenizer, "encode_rendered", lambda *args: (read.append(1), encode(*args))[1])
    error = error_of(http.post(CHAT, json=chat("x " * 2_000_000)))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert re.search(r"maximum context length is \d+ tokens, but the prompt has at least \d+ tokens", error["message"])
    assert read == []
    cut = http.post(CHAT, json=chat("x " * 50_000, truncate_prompt_tokens=5, max_tokens=1))
    assert cut.json()["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    "content", ["hi", [{"type": "text", "text": "hi"}], [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]]
)
def test_content_may_be_parts(server: RunningServer, http: httpx.Client, content: Any) -> None:
    ids = post(http, chat(content, return_token_ids=True))["prompt_token_ids"]
    assert server.tokenizer.decode(ids).startswith("user\nh")


def test_logprobs(server: RunningServer, http: httpx.Client) -> None:
    server.say("a 你")
    asked = {"logprobs": True, "top_logprobs": 2}
    choice = http.post(CHAT, json=chat("hi", **asked)).json()["choices"][0]
    *entries, end = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "a 你".encode()
    assert end["token"] == "<|im_end|>"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    chunks = events_of(http.post(CHAT, json=chat("hi", stream=True, **asked)).text)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == [*entries, end]


def test_logprobs_without_top(server: RunningServer, http: httpx.Client) -> None:
    server.say("ab")
    content = http.post(CHAT, json=chat("hi", logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[], [], []]
    assert http.post(CHAT, json=chat("hi", logprobs=False, top_logprobs=0)).json()["choices"][0]["logprobs"] is None


def test_as_many_logprobs_as_the_server_gives(server: RunningServer, http: httpx.Client) -> None:
    server.say("a")
    choices = [post(http, chat("hi", logprobs=True, top_logprobs=num))["choices"] for num in (-1, 20, 19)]
    assert choices[0] == choices[1] != choices[2]


@pytest.mark.parametrize(
    "fields",
    [{"top_logprobs": 2}, {"top_logprobs": -1}, {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": -2}],
    ids=str,
)
def test_top_logprobs_limits(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert error_of(http.post(CHAT, json=chat("hi", **fields)))["param"] == "top_logprobs"


def test_prompt_logprobs_best_of_and_truncation(server: RunningServer, http: httpx.Client) -> None:
    server.say("ab")
    body = chat("hi", prompt_logprobs=0, best_of=3, truncate_prompt_tokens=4, return_token_ids=True)
    answer = http.post(CHAT, json=body).json()
    assert len(answer["choices"]) == 1
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"]) == 4
    assert answer["usage"]["completion_tokens"] == 9
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert [list(entry) for entry in rest] == [[str(token_id)] for token_id in answer["prompt_token_ids"][1:]]


THINKING = (
    "{% for m in messages %}{{ m['role'] }}: {{ m.get('reasoning_content', '') }}{{ m['content'] }}\n{% endfor %}"
    "{% if documents %}{% for d in documents %}[{{ d['title'] }}] {{ d['text'] }}\n{% endfor %}{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}{# <think> #}"
    "{% if messages[0]['role'] == 'critic' %}!{% endif %}"
)


@pytest.fixture(scope="module")
def thinker() -> Iterator[RunningServer]:
    with running(Scene(chat_template=THINKING)) as server:
        yield server


def asked(server: RunningServer, stream: bool, **fields: Any) -> dict[str, str]:
    """The message's texts, joined over a stream."""
    body = chat("hi", **fields) | {"stream": stream}
    response = httpx.post(f"{server.base_url}{CHAT}", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        message = response.json()["choices"][0]["message"]
        return {name: message[name] for name in ("content", "reasoning", "reasoning_content") if message[name]}
    joined: dict[str, str] = {}
    for event in events_of(response.text):
        for name, text in event["choices"][0]["delta"].items():
            if name != "role" and text:
                joined[name] = joined.get(name, "") + text
    return joined


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_has_both_names_and_may_be_left_out_or_left_in(thinker: RunningServer, stream: bool) -> None:
    thinker.say("<think>two</think>four")
    assert asked(thinker, stream) == {"content": "four", "reasoning": "two", "reasoning_content": "two"}
    assert asked(thinker, stream, include_reasoning=False) == {"content": "four"}
    assert asked(thinker, stream, separate_reasoning=False) == {"content": "<think>two</think>four"}


def test_reasoning_that_is_left_out_is_counted(thinker: RunningServer) -> None:
    thinker.say("<think>two</think>four")
    body = chat("hi", include_reasoning=False)
    usage = httpx.post(f"{thinker.base_url}{CHAT}", json=body).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_with_the_assistants_last_message(thinker: RunningServer, stream: bool) -> None:
    thinker.say(" and more")
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one"}]
    continued = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert asked(thinker, stream, **continued, echo=True)["content"] == "one and more"
    assert asked(thinker, stream, **continued)["content"] == " and more"
    assert asked(thinker, stream, echo=True)["content"] == " and more", "the last message is the user's"


def test_documents_reach_a_template_that_has_a_place_for_them(thinker: RunningServer, http: httpx.Client) -> None:
    documents = [{"title": "a", "text": "is <|im_end|> b"}]
    body = chat("hi", documents=documents, return_token_ids=True)
    ids = httpx.post(f"{thinker.base_url}{CHAT}", json=body).json()["prompt_token_ids"]
    assert "[a] is <|im_end|> b\n" in thinker.tokenizer.decode(ids)
    refused = error_of(http.post(CHAT, json=chat("hi", documents=documents)))
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "documents")
    assert http.post(CHAT, json=chat("hi", documents=[])).status_code == 200
    too_many = error_of(httpx.post(f"{thinker.base_url}{CHAT}", json=chat("hi", documents=documents * 129)))
    assert too_many["param"] == "documents"


def test_a_role_of_the_templates_own(thinker: RunningServer, http: httpx.Client) -> None:
    body = {"messages": [{"role": "critic", "content": "hm"}]}
    assert httpx.post(f"{thinker.base_url}{CHAT}", json=body).status_code == 200
    assert error_of(http.post(CHAT, json=body))["param"] == "messages[0].role"


def test_the_history_may_call_reasoning_by_either_name(thinker: RunningServer) -> None:
    def prompt(name: str) -> list[int]:
        messages = [{"role": "assistant", "content": "x", name: "because"}, {"role": "user", "content": "y"}]
        body = {"messages": messages, "return_token_ids": True, "max_tokens": 1}
        ids: list[int] = httpx.post(f"{thinker.base_url}{CHAT}", json=body).json()["prompt_token_ids"]
        return ids

    assert prompt("reasoning") == prompt("reasoning_content")
    assert "because" in thinker.tokenizer.decode(prompt("reasoning"))


def test_tokens_as_token_ids(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("a b")
    body = chat("hi", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    for choice in (post(http, body)["choices"][0],):
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{each}" for each in ids]
