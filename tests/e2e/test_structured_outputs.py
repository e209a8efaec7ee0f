"""Structured outputs of the real service with the quickstart model, as openai-python sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.e2e.server_process import ServerProcess

MODEL = "headrace-quickstart"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How do I watch the batch size?"}]


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Note(BaseModel):
    colour: Colour
    urgency: int = Field(ge=0, le=9)
    tags: list[Colour] = Field(max_length=3)


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with (
        ServerProcess("--dtype", "float32", "--kv-cache-memory", "12MiB", "--device", "cpu") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_parse_returns_the_pydantic_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Note, temperature=1.5, n=4, seed=1, max_tokens=200
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 4
    assert all(isinstance(choice.message.parsed, Note) for choice in answer.choices)


def test_the_stream_helper_parses(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Note, temperature=0, max_tokens=200
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.done" in kinds
    assert isinstance(final.choices[0].message.parsed, Note)


def test_extensions(client: OpenAI) -> None:
    for extra, pattern in (
        ({"regex": "[A-Z]{3}-[0-9]{4}"}, "[A-Z]{3}-[0-9]{4}"),
        ({"structured_outputs": {"choice": ["positive", "negative"]}}, "positive|negative"),
        ({"guided_grammar": 'root ::= "(" root ")" | "x"'}, r"\(*x\)*"),
    ):
        answer = client.completions.create(model=MODEL, prompt="A", n=4, seed=2, max_tokens=60, extra_body=extra)
        for choice in answer.choices:
            if choice.finish_reason == "stop":
                assert re.fullmatch(pattern, choice.text)


def test_an_object_that_is_cut_says_length(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, temperature=1, n=6, max_tokens=40
    )
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)
        else:
            assert choice.finish_reason == "length"


def test_logprobs_penalties_and_bias_beside_a_form(client: OpenAI) -> None:
    """The log probabilities are the model's own: also those of tokens that the form rules out are told."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        logprobs=True,
        top_logprobs=3,
        n=2,
        seed=1,
        temperature=1.2,
        presence_penalty=1,
        logit_bias={"50": 5},
        max_tokens=30,
        extra_body={"regex": "(yes|no), [a-z]{3}", "repetition_penalty": 1.2, "min_p": 0.01},
    )
    for choice in answer.choices:
        assert re.fullmatch("(yes|no), [a-z]{3}", choice.message.content or "")
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert max(top.logprob for top in choice.logprobs.content[0].top_logprobs) > choice.logprobs.content[0].logprob
