"""openai-python against the real service: sync, async, the stream helper, parse, tools."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Headrace?"}]


class Weather(BaseModel):
    """How the weather is."""

    city: str = Field(max_length=10)
    unit: Literal["C", "F"]


def test_sync_async_and_streamed_say_the_same(base_url: str) -> None:
    async def ask_async() -> tuple[str | None, str]:
        async with AsyncOpenAI(base_url=base_url, api_key="none", _strict_response_validation=True) as client:
            whole = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
            async with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
                pieces = [event.delta async for event in stream if event.type == "content.delta"]
            return whole.choices[0].message.content, "".join(pieces)

    with OpenAI(base_url=base_url, api_key="none", _strict_response_validation=True) as client:
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0).choices[0].message
        with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
            streamed = "".join(event.delta for event in stream if event.type == "content.delta")
    assert "Headrace" in (answer.content or "")
    assert streamed == answer.content
    assert asyncio.run(ask_async()) == (answer.content, answer.content)


def test_parse_with_a_model_and_with_tools(base_url: str) -> None:
    with OpenAI(base_url=base_url, api_key="none", _strict_response_validation=True) as client:
        parsed = client.chat.completions.parse(
            model=MODEL, messages=QUESTION, response_format=Weather, temperature=0, max_tokens=100
        )
        assert isinstance(parsed.choices[0].message.parsed, Weather)
        called = client.chat.completions.parse(
            model=MODEL,
            messages=QUESTION,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=100,
        )
        message = called.choices[0].message
        assert message.tool_calls
        (call,) = message.tool_calls
        assert isinstance(call.function.parsed_arguments, Weather)
        reply: Any = message.model_dump(
            exclude_none=True, exclude={"parsed": True, "tool_calls": {0: {"function": {"parsed_arguments"}}}}
        )
        result: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
        second = client.chat.completions.create(model=MODEL, messages=[*QUESTION, reply, result], max_tokens=50)
        assert isinstance(second.choices[0].message.content, str)


def test_async_calls_side_by_side(base_url: str) -> None:
    async def scene() -> list[Weather | None]:
        async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.parse(
                        model=MODEL, messages=QUESTION, response_format=Weather, seed=seed, max_tokens=100
                    )
                    for seed in range(8)
                )
            )
        return [answer.choices[0].message.parsed for answer in answers]

    assert all(isinstance(each, Weather) for each in asyncio.run(scene()))
