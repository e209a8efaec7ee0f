"""Every parameter of the wire shapes through openai-python, against the real service and its own model,
shortened.

Strict validation; streamed and whole say the same; nothing is ignored. What a parameter does is proved elsewhere
(tests/README.md): here, that both endpoints take it in both ways. OpenAI's type of a completion's chunk wants a finish
reason in each, which its own streams do not have: those streams are not validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from service.protocol.chat import ChatRequest
from service.protocol.completions import CompletionRequest
from service.protocol.responses import ResponsesRequest
from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.e2e.strict_client import strict_client

MODEL = "headrace-quickstart"
QUESTION = [{"role": "user", "content": "What is Headrace?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SHARED: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 3},
    "max_completion_tokens": {"max_completion_tokens": 4},
    "temperature": {"temperature": 1.5},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.05},
    "presence_penalty": {"presence_penalty": 1},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {"50": 5}},
    "bad_words": {"bad_words": ["Headrace"]},
    "allowed_token_ids": {"allowed_token_ids": list(range(300, 900))},
    "min_tokens": {"min_tokens": 5},
    "seed": {"seed": 3},
    "deterministic": {"deterministic": False},  # true is refused of a model in fp32
    "thinking_token_budget": {"thinking_token_budget": -1},
    "n": {"n": 3},
    "use_beam_search": {"use_beam_search": True, "temperature": 1, "n": 2, "seed": None},
    "beam_width": {"use_beam_search": True, "temperature": 1, "beam_width": 3, "seed": None},
    "length_penalty": {"use_beam_search": True, "beam_width": 2, "length_penalty": 0.5, "temperature": 0},
    "early_stopping": {"use_beam_search": True, "beam_width": 2, "early_stopping": True, "temperature": 0},
    "stop": {"stop": ["a", "e"]},
    "ignore_eos": {"ignore_eos": True},
    "return_token_ids": {"return_token_ids": True},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 4},
    "truncation_side": {"truncate_prompt_tokens": 4, "truncation_side": "right"},
    "stop_token_ids": {"stop_token_ids": list(range(300, 400))},
    "include_stop_str_in_output": {"stop": "e", "include_stop_str_in_output": True},
    "no_stop_trim": {"stop": "e", "no_stop_trim": True},
    "user": {"user": "someone"},
    "request_id": {"request_id": "mine-1"},
    "priority": {"priority": 3},
    "service_tier": {"service_tier": "flex"},
    "cache_salt": {"cache_salt": "salt"},
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"regex": "[a-c]{3}"}},
    "regex": {"regex": "[0-9]{2}-[a-z]+"},
    "choice": {"choice": ["red", "green"]},
    "grammar": {"grammar": 'root ::= "x" | "(" root ")"'},
    "ebnf": {"ebnf": 'root ::= "x" | "y"'},
    "json_schema": {"json_schema": '{"type": "integer", "minimum": 3, "maximum": 5}'},
    "guided_json": {"guided_json": {"type": "integer", "minimum": 3, "maximum": 5}},
    "guided_regex": {"guided_regex": "yes|no"},
    "guided_choice": {"guided_choice": ["up", "down"]},
    "guided_grammar": {"guided_grammar": 'start: "a"+'},
}
WHOLE_ONLY: dict[str, dict[str, Any]] = {"best_of": {"best_of": 3}, "prompt_logprobs": {"prompt_logprobs": 1}}
CHAT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": True, "logprob_token_ids": [7, 9]},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "tools": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    "tool_choice": {"tools": [TOOL], "tool_choice": "none"},
    "parallel_tool_calls": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60},
    "functions": {"functions": [TOOL["function"]], "function_call": "none"},
    "function_call": {
        "functions": [TOOL["function"]],
        "function_call": {"name": TOOL["function"]["name"]},
        "max_tokens": 60,
    },
    "reasoning_effort": {"reasoning_effort": "none"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "add_generation_prompt": {"add_generation_prompt": False},
    "documents": {"documents": []},
    "echo": {"echo": True},
    "include_reasoning": {"include_reasoning": False},
    "separate_reasoning": {"separate_reasoning": False},
    "continue_final_message": {
        "messages": [*QUESTION, {"role": "assistant", "content": "Headrace is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 2},
    "logprob_token_ids": {"logprobs": 2, "logprob_token_ids": [7, 9]},
    "echo": {"echo": True, "max_tokens": 2},
    "add_special_tokens": {"add_special_tokens": False},
}
RESPONSE_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
RESPONSES: dict[str, dict[str, Any]] = {
    "instructions": {"instructions": "Be brief."},
    "tools": {"tools": [RESPONSE_TOOL], "tool_choice": "required", "max_output_tokens": 60},
    "tool_choice": {"tools": [RESPONSE_TOOL], "tool_choice": "none"},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "max_tool_calls": {"max_tool_calls": 3},
    "text": {"text": {"format": {"type": "json_object"}}},
    "reasoning": {"reasoning": {"effort": "none"}},
    "include": {"include": ["message.output_text.logprobs"]},
    "max_output_tokens": {"max_output_tokens": 3},
    "top_logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
    "truncation": {"truncation": "auto"},
    "stream_options": {"stream_options": {"include_obfuscation": False}},
    "store": {"store": False},
    "previous_response_id": {"previous_response_id": None},
    "background": {"background": False},
    "metadata": {"metadata": {"a": "b"}},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "safety_identifier": {"safety_identifier": "s"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
}
IN_EVERY_CALL = {"model", "messages", "prompt", "stream", "stream_options"}


class Said(NamedTuple):
    """Of each choice; usage of all."""

    texts: list[str]
    reasons: list[str | None]
    usage: tuple[int, int]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    arguments = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "32MiB")
    with ServerProcess(*short_quickstart(), *arguments, "--scheduling-policy", "priority") as server:
        yield server


@pytest.fixture(scope="module")
def strict(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def lenient(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body_of(change: dict[str, Any]) -> dict[str, Any]:
    """The call with this change; fields that the client does not know go as they are."""
    return {"extra_body": {"max_tokens": 5, "seed": 1, "temperature": 0.8, **change}}


def ask_chat(client: OpenAI, change: dict[str, Any]) -> Said:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, **body_of(change))
    assert "x-ignored-params" not in raw.headers
    answer = raw.parse()
    assert answer.usage is not None
    messages = [choice.message for choice in answer.choices]
    texts = [
        (message.content or "") + "".join(call.function.arguments for call in message.tool_calls or ())
        for message in messages
    ]
    reasons: list[str | None] = [choice.finish_reason for choice in answer.choices]
    return Said(texts, reasons, (answer.usage.prompt_tokens, answer.usage.completion_tokens))


def stream_chat(client: OpenAI, change: dict[str, Any], num_choices: int) -> Said:
    texts, reasons = [""] * num_choices, list[str | None]([None] * num_choices)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(model=MODEL, messages=QUESTION, **options, **body_of(change))
    for chunk in chunks:
        (choice,) = chunk.choices
        assert chunk.usage is None
        texts[choice.index] += choice.delta.content or ""
        texts[choice.index] += "".join(call.function.arguments for call in choice.delta.tool_calls or ())
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert last.choices == []
    return Said(texts, reasons, (last.usage.prompt_tokens, last.usage.completion_tokens))


def ask_completion(client: OpenAI, change: dict[str, Any]) -> Said:
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="Headrace is", **body_of(change))
    assert "x-ignored-params" not in raw.headers
    answer = raw.parse()
    assert answer.usage is not None
    reasons: list[str | None] = [choice.finish_reason for choice in answer.choices]
    usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return Said([choice.text for choice in answer.choices], reasons, usage)


def stream_completion(client: OpenAI, change: dict[str, Any], num_choices: int) -> Said:
    texts, reasons = [""] * num_choices, list[str | None]([None] * num_choices)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.completions.create(model=MODEL, prompt="Headrace is", **options, **body_of(change))
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert last.choices == []
    return Said(texts, reasons, (last.usage.prompt_tokens, last.usage.completion_tokens))


def ask_response(client: OpenAI, change: dict[str, Any]) -> Any:
    body = {"max_output_tokens": 5, "seed": 1, "temperature": 0.8, **change}
    raw = client.responses.with_raw_response.create(model=MODEL, input="What is Headrace?", extra_body=body)
    assert "x-ignored-params" not in raw.headers
    return raw.parse()


def stream_response(client: OpenAI, change: dict[str, Any]) -> Any:
    body = {"max_output_tokens": 5, "seed": 1, "temperature": 0.8, **change}
    *_, last = client.responses.create(model=MODEL, input="What is Headrace?", stream=True, extra_body=body)
    return last.response


def said_of(response: Any) -> tuple[object, ...]:
    said = [
        item.content[0].model_dump() if item.type == "message" else (item.name, item.arguments)
        for item in response.output
    ]
    return (said, response.status, response.usage.input_tokens, response.usage.output_tokens)


@pytest.mark.parametrize("change", [*SHARED.values(), *CHAT.values()], ids=[*SHARED, *CHAT])
def test_chat_takes_it_whole_and_streamed(strict: OpenAI, change: dict[str, Any]) -> None:
    whole = ask_chat(strict, change)
    assert stream_chat(strict, change, len(whole.texts)) == whole
    assert None not in whole.reasons


@pytest.mark.parametrize("change", [*SHARED.values(), *COMPLETIONS.values()], ids=[*SHARED, *COMPLETIONS])
def test_completions_take_it_whole_and_streamed(strict: OpenAI, lenient: OpenAI, change: dict[str, Any]) -> None:
    whole = ask_completion(lenient if "echo" in change else strict, change)
    assert stream_completion(lenient, change, len(whole.texts)) == whole
    assert None not in whole.reasons


OF_RESPONSES = {**{name: SHARED[name] for name in SHARED if name in ResponsesRequest.model_fields}, **RESPONSES}


@pytest.mark.parametrize("change", OF_RESPONSES.values(), ids=OF_RESPONSES)
def test_responses_take_it_whole_and_streamed(strict: OpenAI, change: dict[str, Any]) -> None:
    whole = ask_response(strict, change)
    assert said_of(stream_response(strict, change)) == said_of(whole)
    assert whole.status in ("completed", "incomplete")


@pytest.mark.parametrize("change", WHOLE_ONLY.values(), ids=WHOLE_ONLY)
def test_what_is_not_for_streams(strict: OpenAI, change: dict[str, Any]) -> None:
    assert ask_completion(strict, change).texts != [""]
    assert ask_chat(strict, change).texts != [""]


def test_no_parameter_is_left_out() -> None:
    assert set(ChatRequest.model_fields) == set(SHARED) | set(WHOLE_ONLY) | set(CHAT) | IN_EVERY_CALL - {"prompt"}
    fields = set(SHARED) | set(WHOLE_ONLY) | set(COMPLETIONS) | IN_EVERY_CALL - {"messages"}
    of_other_tokenizers = {"suffix"}  # tests/text/test_infill.py
    assert set(CompletionRequest.model_fields) == fields | of_other_tokenizers
    assert set(ResponsesRequest.model_fields) == set(OF_RESPONSES) | {"model", "input", "stream"}
