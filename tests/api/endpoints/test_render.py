from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.serving_state import GenerationDefaults
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


def test_the_ids_are_those_of_the_call_and_nothing_is_generated(server: RunningServer, http: httpx.Client) -> None:
    asked = {"temperature": 0.5, "stop": ["x"], "seed": 7, "max_tokens": 9, "stream": True, "cache_salt": "tenant"}
    rendered = http.post(f"{CHAT}/render", json=chat("hi", **asked)).json()
    assert rendered["request_id"].startswith("chatcmpl-")
    assert (rendered["model"], rendered["features"], rendered["stream"]) == (MODEL, None, True)
    assert rendered["cache_salt"] == "tenant"
    sampling = rendered["sampling_params"]
    assert {name: sampling[name] for name in ("temperature", "stop", "seed", "max_tokens")} == {
        name: asked[name] for name in ("temperature", "stop", "seed", "max_tokens")
    }
    assert server.executor.num_iterations == 0
    whole = http.post(CHAT, json=chat("hi", return_token_ids=True)).json()
    assert rendered["token_ids"] == whole["prompt_token_ids"]


def test_a_completion_is_a_list_with_one_a_prompt(http: httpx.Client) -> None:
    body = completion(prompt=["hello", "good day"])
    rendered = http.post(f"{COMPLETIONS}/render", json=body).json()
    choices = http.post(COMPLETIONS, json={**body, "return_token_ids": True}).json()["choices"]
    assert [each["token_ids"] for each in rendered] == [choice["prompt_token_ids"] for choice in choices]
    assert [each["sampling_params"]["max_tokens"] for each in rendered] == [16, 16]
    assert rendered[0]["sampling_params"]["seed"] is None


@pytest.mark.parametrize("lower_first", [False, True])
def test_a_priority_is_shown_as_it_was_given(lower_first: bool) -> None:
    defaults = GenerationDefaults(heeds_priority=True, lower_priority_first=lower_first)
    with running(Scene(defaults=defaults)) as server, httpx.Client(base_url=server.base_url) as http:
        (rendered,) = http.post(f"{COMPLETIONS}/render", json=completion(priority=3)).json()
    assert rendered["priority"] == 3


def test_what_the_call_refuses_is_refused(http: httpx.Client) -> None:
    for fields, param in (({"n": 0}, "n"), ({"prompt": []}, "prompt"), ({"max_tokens": 10**6}, "max_tokens")):
        assert error_of(http.post(f"{COMPLETIONS}/render", json=completion(**fields)))["param"] == param
    beams = completion(use_beam_search=True, beam_width=2)
    assert error_of(http.post(f"{COMPLETIONS}/render", json=beams))["param"] == "use_beam_search"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "user", "content": ""}]},
        {
            "messages": [{"role": "user", "content": "hi"}],
            "add_generation_prompt": True,
            "chat_template_kwargs": {},
        },
        {"messages": [{"role": "assistant", "content": "hi"}], "continue_final_message": True},
    ],
)
def test_chats_as_llm_ds_endpoint_picker_asks_for_them(http: httpx.Client, fields: dict[str, Any]) -> None:
    """Its tokenizer plugin sends these bodies and reads `token_ids` and `features`; docs/production.md: the version."""
    rendered = http.post(f"{CHAT}/render", json={"model": MODEL, **fields}).json()
    assert rendered["token_ids"] and all(type(token) is int for token in rendered["token_ids"])
    assert rendered["features"] is None


def test_completions_as_llm_ds_endpoint_picker_asks_for_them(http: httpx.Client) -> None:
    first, *others = http.post(f"{COMPLETIONS}/render", json={"model": MODEL, "prompt": "hi"}).json()
    assert first["token_ids"] and not others
