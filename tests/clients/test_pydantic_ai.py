"""Pydantic AI against the real service: answers, streams, tools, typed outputs. Installed by the extra `clients`."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
pydantic_ai = pytest.importorskip("pydantic_ai")
direct = pytest.importorskip("pydantic_ai.direct")
messages = pytest.importorskip("pydantic_ai.messages")
models = pytest.importorskip("pydantic_ai.models")
tools = pytest.importorskip("pydantic_ai.tools")
openai_models = pytest.importorskip("pydantic_ai.models.openai")
openai_providers = pytest.importorskip("pydantic_ai.providers.openai")


class Verdict(BaseModel):
    good: bool
    why: Literal["fast", "small", "plain"]


def agent(base_url: str, output_type: Any = str, **settings: Any) -> Any:
    provider = openai_providers.OpenAIProvider(base_url=base_url, api_key="none")
    return pydantic_ai.Agent(
        openai_models.OpenAIChatModel(MODEL, provider=provider),
        output_type=output_type,
        model_settings={"temperature": 0.0, "max_tokens": 150, **settings},
        retries=0,
    )


def test_a_run_whole_and_streamed(base_url: str) -> None:
    async def stream() -> str:
        async with agent(base_url).run_stream("What is Headrace?") as result:
            return "".join([piece async for piece in result.stream_text(delta=True, debounce_by=None)])

    whole = agent(base_url).run_sync("What is Headrace?")
    assert "Headrace" in whole.output
    assert whole.usage.output_tokens > 0
    assert asyncio.run(stream()) == whole.output


class Anything(BaseModel):
    """What any object is."""


def test_a_typed_output_that_is_only_asked_for(base_url: str) -> None:
    assert isinstance(agent(base_url, pydantic_ai.PromptedOutput(Anything)).run_sync("Is it good?").output, Anything)


@pytest.mark.parametrize("mode", ["ToolOutput", "NativeOutput"])
def test_a_typed_output(base_url: str, mode: str) -> None:
    output = getattr(pydantic_ai, mode)(Verdict)
    assert isinstance(agent(base_url, output).run_sync("Is it good?").output, Verdict)


def test_a_tool_is_called_and_its_result_goes_back(base_url: str) -> None:
    provider = openai_providers.OpenAIProvider(base_url=base_url, api_key="none")
    model = openai_models.OpenAIChatModel(MODEL, provider=provider)
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tool = tools.ToolDefinition(name="weather", parameters_json_schema={**schema, "additionalProperties": False})
    settings = {"temperature": 0.0, "max_tokens": 50, "parallel_tool_calls": False}

    def answer_to(*history: Any, may_talk: bool) -> Any:
        parameters = models.ModelRequestParameters(function_tools=[tool], allow_text_output=may_talk)
        return direct.model_request_sync(
            model, list(history), model_settings=settings, model_request_parameters=parameters
        )

    asked = messages.ModelRequest([messages.UserPromptPart("How is Oslo?")])
    called = answer_to(asked, may_talk=False)
    (call,) = called.parts
    assert call.tool_name == "weather"
    assert call.args_as_dict()["unit"] in ("C", "F")
    result = messages.ToolReturnPart("weather", "7 degrees", tool_call_id=call.tool_call_id)
    told = answer_to(asked, called, messages.ModelRequest([result]), may_talk=True)
    assert isinstance(told.parts[-1], messages.TextPart)


def test_a_history_goes_on(base_url: str) -> None:
    guide = agent(base_url)
    first = guide.run_sync("What is Headrace?")
    second = guide.run_sync("How do I watch the batch size?", message_history=first.all_messages())
    assert len(second.all_messages()) == 4
    assert second.output
