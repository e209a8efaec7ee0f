from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.text import long_text
from service.text.tokenizer import Tokenizer
from tests.api.running_server import RunningServer, running
from tests.api.wire import CHAT, COMPLETIONS, completion, error_of

CONTEXT = 2048
CANNOT_FIT = "x" * 1_100_000


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be tokenized."""

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("the text was tokenized")

    monkeypatch.setattr(Tokenizer, "encode", touched)
    monkeypatch.setattr(Tokenizer, "encode_rendered", touched)


def check_refused(response: httpx.Response, param: str) -> str:
    assert response.status_code == 400, response.text[:300]
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert str(CONTEXT) in error["message"]
    return str(error["message"])


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": CANNOT_FIT}, "prompt"),
        (COMPLETIONS, {"prompt": ["x", CANNOT_FIT]}, "prompt"),
        (COMPLETIONS, {"prompt": CANNOT_FIT, "truncate_prompt_tokens": 5}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": CANNOT_FIT}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": CANNOT_FIT}], "truncate_prompt_tokens": 5}, "messages"),
        ("/tokenize", {"prompt": CANNOT_FIT}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": CANNOT_FIT}]}, "messages"),
    ],
)
def test_what_can_never_fit_is_refused_before_it_is_tokenized(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    assert "at least" in check_refused(http.post(path, json={"model": "tiny/model", **body}), param)


def test_messages_that_can_never_fit_are_not_even_rendered(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rendered(*_: object, **__: object) -> None:
        raise AssertionError("the messages were rendered")

    monkeypatch.setattr("service.api.calls.chat_prompting.encode_chat", rendered)
    messages = [{"role": "user", "content": "x" * 1000}] * 100
    check_refused(http.post(CHAT, json={"model": "tiny/model", "messages": messages}), "messages")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_prompt_is_read_no_further_than_the_context(
    http: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "PIECE_CHARACTERS", 1000)
    text = ("e " * 10_000)[:20_000]  # of which the longest tokens would be few enough
    body = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    message = check_refused(http.post(path, json={"model": "tiny/model", **body}), next(iter(body)))
    least = int(message.partition("at least ")[2].split()[0])
    assert CONTEXT < least < CONTEXT + 1000


def test_what_is_counted_may_be_longer_than_the_context_up_to_a_bound(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.calls.prompt_ids.MOST_COUNTED", 20_000)
    assert http.post("/tokenize", json={"prompt": "e " * 5_000}).json()["count"] == 10_001
    message = check_refused(http.post("/tokenize", json={"prompt": "\u00e9" * 19_000}), "prompt")
    assert "no more than 20000 are read" in message


@pytest.mark.parametrize("keep", [5, -1])
def test_a_prompt_that_is_cut_may_be_longer_than_the_context(http: httpx.Client, keep: int) -> None:
    body = completion(prompt="word " * 20_000 + "end", truncate_prompt_tokens=keep, return_token_ids=True, max_tokens=3)
    ids = http.post(COMPLETIONS, json=body).json()["choices"][0]["prompt_token_ids"]
    assert len(ids) == (5 if keep == 5 else CONTEXT - 3)


def test_no_more_ids_are_decoded_than_counted(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.endpoints.tokenize.MOST_COUNTED", 5_000)
    assert http.post("/detokenize", json={"tokens": [75] * 5_000}).status_code == 200
    response = http.post("/detokenize", json={"tokens": [75] * 5_001})
    assert (response.status_code, error_of(response)["param"]) == (400, "tokens")
    assert "at most 5000, but there are 5001" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 9_000}, "prompt"),
        ("/tokenize", {"prompt": "x" * 9_000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 9_000}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 9_000}]}, "messages"),
    ],
)
def test_a_text_that_is_too_long_to_be_tokenized_at_once_is_refused_by_name(
    path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr(long_text, "MOST_UNDIVIDED", 4000)
    with running() as server:
        response = httpx.post(server.base_url + path, json={"model": "tiny/model", **body})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert "no place to cut it" in error_of(response)["message"]
