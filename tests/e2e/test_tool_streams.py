"""Streams of tool calls as clients put them together: what vLLM's, SGLang's and llama.cpp's users report as broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.e2e.strict_client import strict_client
from tests.text import tiny_tokenizers

QUESTION: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Oslo or Rome?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("warmth", "rain")]
CALLS = (
    '<think>Both.</think>Let me see.<tool_call>\n{"name": "warmth", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "rain", "arguments": {"city": "Rome"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        server.say(CALLS)
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with strict_client(server.base_url) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, n=2, **fields)


def test_each_call_begins_with_its_id_and_goes_on_with_arguments_alone(client: OpenAI) -> None:
    fragments = defaultdict(list)
    for chunk in ask(client, stream=True):
        (choice,) = chunk.choices
        for call in choice.delta.tool_calls or ():
            fragments[choice.index, call.index].append(call)
    assert sorted(fragments) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (_, index), (first, *rest) in fragments.items():
        assert (first.type, first.function.name) == ("function", ("warmth", "rain")[index])
        assert all((call.id, call.type, call.function.name) == (None, None, None) for call in rest)
        arguments = "".join(call.function.arguments for call in (first, *rest))
        assert arguments == ('{"city": "Oslo"}', '{"city": "Rome"}')[index]
    assert len({calls[0].id for calls in fragments.values()}) == 4, "all calls of all choices have ids of their own"


def test_a_choice_ends_once_with_an_empty_delta_and_the_usage_comes_last(client: OpenAI) -> None:
    *chunks, last = ask(client, stream=True, stream_options={"include_usage": True})
    ends = [chunk.choices[0] for chunk in chunks if chunk.choices[0].finish_reason is not None]
    assert sorted((end.index, end.finish_reason) for end in ends) == [(0, "tool_calls"), (1, "tool_calls")]
    assert all(end.delta.model_dump(exclude_unset=True) == {} for end in ends)
    for chunk in chunks:
        delta = chunk.choices[0].delta.model_dump(exclude_unset=True)
        assert delta or chunk.choices[0].finish_reason, "no delta says nothing"
    assert last.choices == []
    assert last.usage == ask(client).usage
    assert last.usage.completion_tokens_details.reasoning_tokens > 0


def test_log_probabilities_cover_reasoning_content_and_calls(client: OpenAI) -> None:
    whole = ask(client, logprobs=True, top_logprobs=1)
    streamed: dict[int, list[str]] = {0: [], 1: []}
    for chunk in ask(client, logprobs=True, top_logprobs=1, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed[chunk.choices[0].index] += [entry.token for entry in (logprobs.content if logprobs else ())]
    for choice in whole.choices:
        tokens = [entry.token for entry in choice.logprobs.content]
        assert streamed[choice.index] == tokens
        assert "".join(tokens).startswith(CALLS)


def test_whole_and_streamed_are_one_message(client: OpenAI) -> None:
    messages = [choice.message for choice in ask(client).choices]
    parts: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in ask(client, stream=True):
        parts[chunk.choices[0].index].append(chunk.choices[0].delta)
    for message, deltas in zip(messages, parts.values(), strict=True):
        assert message.content == "".join(delta.content or "" for delta in deltas).strip() == "Let me see."
        reasoning = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
        assert (message.model_extra or {})["reasoning_content"] == reasoning == "Both."


def test_what_was_said_can_be_said_back(server: RunningServer, client: OpenAI) -> None:
    """Content may be null, empty or left out beside calls; what the client adds of its own does no harm."""
    message = ask(client).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls]
    said = message.model_dump()
    for reply in (
        said,
        said | {"content": None},
        said | {"content": ""},
        {k: v for k, v in said.items() if k != "content"},
    ):
        answer = client.chat.completions.create(model=MODEL, messages=[*QUESTION, reply, *results], tools=TOOLS)
        assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("max_tokens", [59, 62, 68, 133])
def test_a_call_that_was_cut_can_be_said_back(client: OpenAI, max_tokens: int) -> None:
    """By max_tokens: its arguments are no whole JSON, and every later turn brings them along."""
    choice = ask(client, max_tokens=max_tokens).choices[0]
    assert choice.finish_reason == "length"
    said, calls = choice.message.model_dump(), choice.message.tool_calls or []
    results = [{"role": "tool", "tool_call_id": call.id, "content": "The arguments are cut."} for call in calls]
    answer = client.chat.completions.create(model=MODEL, messages=[*QUESTION, said, *results], tools=TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
