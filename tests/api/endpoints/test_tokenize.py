from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.text.tokenizer import Tokenizer
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


def tokenize(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/tokenize", json=fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_text_has_the_ids_of_a_completion(server: RunningServer, http: httpx.Client) -> None:
    body = completion(prompt="hello 你好", return_token_ids=True)
    ids = http.post(COMPLETIONS, json=body).json()["choices"][0]["prompt_token_ids"]
    answer = tokenize(http, prompt="hello 你好")
    assert answer == {"count": len(ids), "max_model_len": 2048, "tokens": ids, "token_strs": None}
    without = tokenize(http, prompt="hello 你好", add_special_tokens=False, model="alias")
    assert [0, *without["tokens"]] == ids


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_are_added_to_both_alike(http: httpx.Client, special: bool) -> None:
    asked = tokenize(http, prompt="hello", add_special_tokens=special)["tokens"]
    assert (asked[0] == 0) == special
    for prompt, ids in (("hello", asked), ([75], [75])):
        body = completion(prompt=prompt, return_token_ids=True, add_special_tokens=special)
        assert http.post(COMPLETIONS, json=body).json()["choices"][0]["prompt_token_ids"] == ids


def test_messages_have_the_ids_of_a_chat(server: RunningServer, http: httpx.Client) -> None:
    body = chat("hi <|im_end|> there")
    ids = http.post(CHAT, json={**body, "return_token_ids": True}).json()["prompt_token_ids"]
    assert tokenize(http, messages=body["messages"])["tokens"] == ids
    shorter = tokenize(http, messages=body["messages"], add_generation_prompt=False)["count"]
    assert shorter < len(ids)


def test_the_tokens_as_the_vocabulary_spells_them(http: httpx.Client) -> None:
    answer = tokenize(http, prompt=" hello", return_token_strs=True)
    assert answer["token_strs"][0] == "<|bos|>"
    assert "".join(answer["token_strs"][1:]) == "Ġhello"


def test_there_and_back(http: httpx.Client) -> None:
    ids = tokenize(http, prompt="a \n 你好 <|im_end|>")["tokens"]
    response = http.post("/detokenize", json={"tokens": ids})
    assert response.json() == {"prompt": "<|bos|>a \n 你好 <|im_end|>"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert tokenize(http, prompt="", add_special_tokens=False)["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, "chat_template"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [5, 10**6]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_refusals_name_the_field(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}])
def test_the_model_is_checked_if_it_is_named(http: httpx.Client, body: dict[str, Any]) -> None:
    response = http.post("/tokenize", json={**body, "model": "gpt-4"})
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


def test_unknown_fields_are_named_or_refused(http: httpx.Client) -> None:
    body = {"prompt": "x", "mood": "good"}
    assert http.post("/tokenize", json=body).headers["x-ignored-params"] == "mood"
    with running(Scene(config=replace(Scene().config, strict_params=True))) as strict:
        response = httpx.post(f"{strict.base_url}/tokenize", json=body)
        assert error_of(response)["code"] == "unknown_parameter"


def test_answers_while_the_engine_is_busy(server: RunningServer, http: httpx.Client) -> None:
    server.executor.gate.clear()
    with http.stream("POST", COMPLETIONS, json=completion(stream=True)):
        assert tokenize(http, prompt="x")["count"] == 2
        server.executor.gate.set()


def test_long_answers_are_not_written_on_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    token_text = Tokenizer.token_text

    def noted(tokenizer: Tokenizer, token_id: int) -> str:
        threads.add(threading.current_thread().name)
        return token_text(tokenizer, token_id)

    monkeypatch.setattr(Tokenizer, "token_text", noted)
    answer = tokenize(http, prompt="\u00e9" * 5000, return_token_strs=True)
    assert len(answer["token_strs"]) == answer["count"] > 4096
    assert all(name.startswith("headrace-text") for name in threads)
