"""Anthropic's Python client, in strict validation, against the real app, engine, tokenizer; the model is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.api.messages_wire import MESSAGES, assembled, events_of
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.text import tiny_tokenizers

HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rom"}}</tool_call>'


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    shared.reset()
    yield shared
    shared.executor.gate.set()
    shared.check_idle()


@pytest.fixture
def client(server: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.base_url, api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


def test_a_message(server: RunningServer, client: Anthropic) -> None:
    server.say("Hello! 你好")
    message = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, system="Be brief.")
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert (block.text, message.stop_reason, message.stop_sequence) == ("Hello! 你好", "end_turn", None)
    assert message.usage.input_tokens > 0
    assert message._request_id


def test_a_stream(server: RunningServer, client: Anthropic) -> None:
    server.say("Hello! 你好")
    stream = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, stream=True)
    kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_stream_helper_has_the_same_message(server: RunningServer, client: Anthropic) -> None:
    server.say(f"<think>so it is</think>I look. {CALL}")
    ask: Any = {"model": MODEL, "max_tokens": 200, "messages": HELLO, "tools": [WEATHER]}
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "I look."
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage == whole.usage
    assert [block.model_dump(exclude={"id", "parsed_output"}) for block in final.content] == [
        block.model_dump(exclude={"id"}) for block in whole.content
    ]


def test_a_round_trip_of_a_tool_call(server: RunningServer, client: Anthropic) -> None:
    server.say(f"<think>so</think>I look. {CALL}")
    asked = client.messages.create(model=MODEL, max_tokens=200, messages=HELLO, tools=[WEATHER])
    *_, call = asked.content
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (call.name, call.input) == ("weather", {"city": "Rom"})
    seen: list[str] = []

    def answer(prompt: Any, so_far: Any, seed: int) -> int:
        seen.append(server.tokenizer.decode(list(prompt)))
        return 2

    server.play(answer)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "20 degrees"}]}
    said: Any = [*HELLO, asked.to_param(), {"role": "user", "content": [result]}]
    client.messages.create(model=MODEL, max_tokens=50, messages=said, tools=[WEATHER])
    assert '"city": "Rom"' in seen[-1].partition("hello")[2]
    assert "20 degrees" in seen[-1]


def test_stop_sequences(server: RunningServer, client: Anthropic) -> None:
    server.say("count: one two three four")
    message = client.messages.create(model=MODEL, max_tokens=99, messages=HELLO, stop_sequences=["wo th", "four"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "wo th")


def test_tokens_are_counted(client: Anthropic) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.", tools=[WEATHER])
    message = client.messages.create(model=MODEL, max_tokens=5, messages=HELLO, system="Be brief.", tools=[WEATHER])
    usage = message.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_parse_returns_the_pydantic_model(server: RunningServer, client: Anthropic) -> None:
    class Place(pydantic.BaseModel):
        city: str

    server.say('{"city": "Rom"} and more that no schema lets it say')
    message = client.messages.parse(model=MODEL, max_tokens=99, messages=HELLO, output_format=Place)
    assert message.parsed_output == Place(city="Rom")


def test_the_beta_client(server: RunningServer, client: Anthropic) -> None:
    server.say(f"<think>so</think>{CALL}")
    betas: Any = ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"]
    ask: Any = {"model": MODEL, "max_tokens": 200, "messages": HELLO, "tools": [WEATHER], "betas": betas}
    assert [block.type for block in client.beta.messages.create(**ask).content] == ["thinking", "tool_use"]
    with client.beta.messages.stream(**ask) as stream:
        assert stream.get_final_message().stop_reason == "tool_use"
    assert client.beta.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens > 0


def test_errors_arrive_as_the_clients_own(server: RunningServer, client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="another", max_tokens=5, messages=HELLO)
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
        client.messages.create(model=MODEL, max_tokens=5, messages=HELLO, extra_body={"temperature": 9})
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "x y " * 3000}])
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type: 'image'"):
        client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": [image]}])


def test_a_failure_within_a_stream_is_raised(server: RunningServer, client: Anthropic) -> None:
    server.play(lambda prompt, so_far, seed: 75 if len(so_far) < 3 else -1)
    with pytest.raises(anthropic.APIStatusError, match="probabilities") as failure:
        list(client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, stream=True))
    assert failure.value.type == "api_error"


def test_closing_a_stream_aborts(server: RunningServer, client: Anthropic) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    with client.messages.stream(model=MODEL, max_tokens=1500, messages=HELLO) as stream:
        for _, _text in zip(range(5), stream.text_stream, strict=False):
            pass
    server.check_idle()
    assert server.executor.num_iterations < 200


def test_async_calls_side_by_side(server: RunningServer) -> None:
    """Each gets the answer to its own question, which is a letter before the end of the prompt."""
    server.play(lambda prompt, so_far, seed: prompt[-8] if len(so_far) < 20 else 2)
    server.executor.delay_s = 0.001

    async def streamed(client: AsyncAnthropic, letter: str) -> str:
        said: Any = [{"role": "user", "content": letter}]
        async with client.messages.stream(model=MODEL, max_tokens=50, messages=said) as stream:
            return "".join([text async for text in stream.text_stream])

    async def scene() -> list[str]:
        async with AsyncAnthropic(base_url=server.base_url, api_key="none", _strict_response_validation=True) as client:
            return await asyncio.gather(*(streamed(client, letter) for letter in "bcdefgh"))

    assert asyncio.run(scene()) == [letter * 20 for letter in "bcdefgh"]


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
REMINDER = "<system-reminder>\nToday is Monday.\n</system-reminder>"


def coding_tools() -> list[dict[str, Any]]:
    """As many as an agent with a few servers of its own brings, each with a long description."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"file_path": {"description": "an absolute path", "type": "string"}},
        "required": ["file_path"],
        "additionalProperties": False,
    }
    names = ["Read", *(f"mcp__plugin_of_somebody__a_rather_long_name_of_a_tool_{index}" for index in range(60))]
    return [{"name": name, "description": "does it. " * 3, "input_schema": schema} for name in names]


def coding_request(session: list[dict[str, Any]]) -> dict[str, Any]:
    """The shape of Claude Code's requests, as its users have captured them."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.77.a1; cc_entrypoint=cli; cch={len(session):05x};"
    return {
        "model": MODEL,
        "messages": session,
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are an agent that codes.", **EPHEMERAL},
            {"type": "text", "text": "\nBe exact.", **EPHEMERAL},
        ],
        "tools": coding_tools(),
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 1,
        "stream": True,
    }


def test_a_session_of_claude_code() -> None:
    """Turn by turn: tools are called and answered, reminders come beside results, system messages in between; what was
    there is found in the prefix cache although the billing header is another one for each request."""
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access": "true",
        "authorization": "Bearer token",
        "x-app": "cli",
    }
    template = tiny_tokenizers.TOOL_TEMPLATE
    scene = Scene(chat_template=template, finds_prefixes=True, max_model_len=32_000, num_blocks=16_000)
    with running(scene) as server, httpx.Client(base_url=server.base_url, headers=headers, timeout=30) as http:

        def turn(session: list[dict[str, Any]]) -> dict[str, Any]:
            response = http.post(f"{MESSAGES}?beta=true", json=coding_request(session))
            assert response.status_code == 200, response.text
            ignored = response.headers["x-ignored-params"].split(",")
            assert set(ignored) == {"context_management", "output_config.effort"}
            return assembled(events_of(response.text))

        first: dict[str, Any] = {
            "role": "user",
            "content": [{"type": "text", "text": REMINDER}, {"type": "text", "text": "Read a.py", **EPHEMERAL}],
        }
        read = '<tool_call>{"name": "Read", "arguments": {"file_path": "/a.py"}}</tool_call>'
        server.say(f"I must read it.</think>I read.{read}")
        asked = turn([first])
        assert [block["type"] for block in asked["content"]] == ["thinking", "text", "tool_use"]
        assert (asked["stop_reason"], asked["usage"]["cache_read_input_tokens"]) == ("tool_use", 0)

        call = asked["content"][-1]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "print(1)", **EPHEMERAL}
        session = [
            first,
            {"role": "assistant", "content": asked["content"]},
            {"role": "user", "content": [result, {"type": "text", "text": REMINDER}]},
            {"role": "system", "content": "The file has changed."},
        ]
        server.say("done</think>It prints 1.")
        answered = turn(session)
        assert (answered["stop_reason"], answered["content"][-1]["text"]) == ("end_turn", "It prints 1.")
        asked_tokens, cached = asked["usage"]["input_tokens"], answered["usage"]["cache_read_input_tokens"]
        assert cached > 0.9 * asked_tokens

        counted = {name: coding_request(session)[name] for name in ("model", "messages", "tools", "system", "thinking")}
        count = http.post(f"{MESSAGES}/count_tokens?beta=true", json=counted)
        assert count.json() == {"input_tokens": answered["usage"]["input_tokens"] + cached}
