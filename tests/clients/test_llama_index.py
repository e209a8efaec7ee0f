"""LlamaIndex's OpenAILike against the real service. Installed by the extra `clients`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
openai_like = pytest.importorskip("llama_index.llms.openai_like")
core = pytest.importorskip("llama_index.core.llms")


class Weather(BaseModel):
    """How the weather is."""

    city: str = Field(max_length=10)
    degrees: int = Field(ge=-50, le=50)


@pytest.fixture
def model(base_url: str) -> Any:
    return openai_like.OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        max_tokens=150,
        temperature=0,
        max_retries=0,
    )


def test_chats_and_streams(model: Any) -> None:
    question = [core.ChatMessage(role="user", content="What is Headrace?")]
    answer = model.chat(question)
    assert "Headrace" in answer.message.content
    assert "".join(each.delta for each in model.stream_chat(question)) == answer.message.content
    assert asyncio.run(model.achat(question)).message.content == answer.message.content


def test_completes(base_url: str) -> None:
    model = openai_like.OpenAILike(model=MODEL, api_base=base_url, api_key="none", max_tokens=20, max_retries=0)
    assert model.complete("Headrace is").text


def test_structured_output(model: Any) -> None:
    answer = model.as_structured_llm(Weather).complete("How is Oslo?")
    assert isinstance(answer.raw, Weather)


def test_a_tool_call(model: Any) -> None:
    tools = pytest.importorskip("llama_index.core.tools")
    tool = tools.FunctionTool.from_defaults(lambda city, degrees: "", name="weather", fn_schema=Weather)
    answer = model.chat_with_tools([tool], user_msg="How is Oslo?", tool_required=True)
    calls = model.get_tool_calls_from_response(answer)
    assert calls[0].tool_name == "weather"
    assert isinstance(Weather(**calls[0].tool_kwargs), Weather)
