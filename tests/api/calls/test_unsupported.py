from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.calls.unsupported import check_extra_fields
from service.errors import UnsupportedParameter
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of

ASKING = {
    "suffix": "x",
    "prompt_embeds": "eA==",
    "service_tier": "flex",
    "priority": 1,
    "chat_template": "x",
    "modalities": ["audio"],
    "reasoning_effort": "high",
    "store": True,
    "return_prompt_text": True,
    "return_hidden_states": True,
    "repetition_detection": {"max_pattern_size": 4},
    "logits_processors": ["a.b"],
    "vllm_xargs": {"a": 1},
    "kv_transfer_params": {"do_remote_decode": True},
    "guided_whitespace_pattern": " ?",
    "guided_json_object": True,
    "stop_regex": ["a+"],
    "custom_logit_processor": "x",
    "lora_path": "x",
    "ec_transfer_params": {"x": 1},
}
DEFAULTS = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": None,
    "tools": [],
    "tool_choice": "auto",
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "service_tier": "auto",
    "store": False,
    "include_reasoning": True,
    "truncation_side": "left",
    "return_tokens_as_token_ids": False,
    "logits_processors": [],
    "vllm_xargs": {},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "now"}}]),
        ("functions", [{"name": "now"}]),
        ("function_call", {"name": "now"}),
    ],
)
def test_a_completion_has_no_tools(http: httpx.Client, name: str, value: Any) -> None:
    refused = http.post(COMPLETIONS, json=completion(**{name: value}))
    assert (refused.status_code, error_of(refused)["param"]) == (400, name)


@pytest.mark.parametrize("name", ASKING)
def test_known_but_unsupported_is_refused_by_name(http: httpx.Client, name: str) -> None:
    for response in (
        http.post(COMPLETIONS, json=completion(**{name: ASKING[name]})),
        http.post(CHAT, json=chat("hi", **{name: ASKING[name]})),
    ):
        assert response.status_code == 400
        error = error_of(response)
        assert (error["code"], error["param"]) == ("unsupported_parameter", name)


def test_at_their_defaults_they_are_accepted(http: httpx.Client) -> None:
    for response in (
        http.post(COMPLETIONS, json=completion() | DEFAULTS),
        http.post(CHAT, json=chat("hi") | DEFAULTS),
    ):
        assert response.status_code == 200, response.text
        assert "x-ignored-params" not in response.headers


def test_labels_are_accepted(http: httpx.Client) -> None:
    body = completion(user="me", metadata={"a": "b"}, safety_identifier="x", prompt_cache_key="y")
    response = http.post(COMPLETIONS, json=body)
    assert response.status_code == 200
    assert "x-ignored-params" not in response.headers


@pytest.mark.parametrize(("name", "value"), [("echo", 0), ("store", 0), ("functions", {}), ("n_", None)])
def test_a_default_of_another_type_is_no_default(name: str, value: Any) -> None:
    if name == "n_":
        assert check_extra_fields({name: value}) == ("n_",)
        return
    with pytest.raises(UnsupportedParameter):
        check_extra_fields({name: value})


def test_special_tokens_beside_a_templates_own_are_refused(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json=chat("hi", add_special_tokens=True)))
    assert (error["code"], error["param"]) == ("unsupported_parameter", "add_special_tokens")
    response = http.post(CHAT, json=chat("hi", add_special_tokens=False))
    assert response.status_code == 200
    assert "x-ignored-params" not in response.headers


def test_what_only_chat_has_is_refused_for_completions(http: httpx.Client) -> None:
    error = error_of(http.post(COMPLETIONS, json=completion(top_logprobs=5)))
    assert (error["code"], error["param"]) == ("unsupported_parameter", "top_logprobs")
