"""openai-python, in strict validation, against the real app, engine and tokenizer (the model is scripted)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.running_server import MODEL, RunningServer, running
from tests.e2e.strict_client import strict_client

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    shared.reset()
    yield shared
    shared.executor.gate.set()
    shared.check_idle()


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with strict_client(server.base_url) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "alias"]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(server: RunningServer, client: OpenAI) -> None:
    server.say("Hello! 你好")
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, user="me")
    assert answer.choices[0].message.content == "Hello! 你好"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id


def test_chat_stream(server: RunningServer, client: OpenAI) -> None:
    server.say("Hello! 你好")
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello! 你好"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


def test_chat_stream_helper(server: RunningServer, client: OpenAI) -> None:
    server.say("one two three")
    with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert text == "one two three"
    assert stream.get_final_completion().choices[0].message.content == text


def test_completions_of_several_prompts(server: RunningServer, client: OpenAI) -> None:
    server.say("ok")
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], n=3, seed=5, max_tokens=8)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert {choice.text for choice in answer.choices} == {"ok"}


def test_completions_stream(server: RunningServer) -> None:
    """Not strict: OpenAI's type wants a finish reason in every chunk; its own streams, and ours, have null."""
    server.say("to be continued")
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        chunks = list(client.completions.create(model=MODEL, prompt="x", stream=True, max_tokens=50))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "to be continued"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_stop_strings(server: RunningServer, client: OpenAI) -> None:
    server.say("count: one two three four")
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop=["wo th", "four"])
    assert answer.choices[0].message.content == "count: one t"


def test_extensions(server: RunningServer, client: OpenAI) -> None:
    ids = server.say("x")
    extra = {"return_token_ids": True, "top_k": 5, "ignore_eos": False}
    answer = client.completions.create(model=MODEL, prompt=[5, 6], extra_body=extra)
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["token_ids"] == ids
    assert answer.choices[0].model_extra["prompt_token_ids"] == [5, 6]


def test_errors_arrive_as_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=MODEL, messages=HELLO, n=1000)
    assert (refusal.value.param, refusal.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(model=MODEL, messages=HELLO, modalities=["audio"])
    assert unsupported.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="x", max_tokens=100_000)
    assert too_long.value.code == "context_length_exceeded"


def test_a_failure_within_a_stream_is_raised(server: RunningServer, client: OpenAI) -> None:
    server.play(lambda prompt, so_far, seed: 75 if len(so_far) < 3 else -1)
    with pytest.raises(openai.APIError, match="probabilities"):
        list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))


def test_closing_a_stream_aborts(server: RunningServer, client: OpenAI) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    with client.chat.completions.create(model=MODEL, messages=HELLO, stream=True) as stream:
        for _, _chunk in zip(range(5), stream, strict=False):
            pass
    server.check_idle()
    assert server.executor.num_iterations < 200


def test_a_timeout_aborts(server: RunningServer, client: OpenAI) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.01
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(model=MODEL, messages=HELLO)
    server.check_idle()
    assert server.executor.num_iterations < 100


def test_many_at_once(server: RunningServer) -> None:
    """Sixteen streams and sixteen whole answers side by side: each gets its own text."""
    letters = [server.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcdefghijklmnop"]
    server.play(lambda prompt, so_far, seed: letters[seed] if len(so_far) < 20 else 2)
    server.executor.delay_s = 0.001

    async def whole(client: AsyncOpenAI, index: int) -> str:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, seed=index)
        return answer.choices[0].message.content or ""

    async def streamed(client: AsyncOpenAI, index: int) -> str:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, seed=index, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def scene() -> list[str]:
        async with AsyncOpenAI(
            base_url=f"{server.base_url}/v1", api_key="none", _strict_response_validation=True
        ) as client:
            calls = [call(client, index) for index in range(16) for call in (whole, streamed)]
            return await asyncio.gather(*calls)

    assert asyncio.run(scene()) == [letter * 20 for letter in "abcdefghijklmnop" for _ in range(2)]
