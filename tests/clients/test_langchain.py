"""LangChain's ChatOpenAI against the real service. Installed by the extra `clients`."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")


class Weather(BaseModel):
    """How the weather is."""

    city: str = Field(max_length=10)
    unit: Literal["C", "F"]


@pytest.fixture
def chat(base_url: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=MODEL, base_url=base_url, api_key="none", temperature=0, max_tokens=200, max_retries=0
    )


def test_invokes_streams_and_batches(chat: Any) -> None:
    answer = chat.invoke("What is Headrace?")
    assert "Headrace" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    chunks = list(chat.stream("What is Headrace?"))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    assert [each.content for each in chat.batch(["What is Headrace?"] * 3)] == [answer.content] * 3
    assert asyncio.run(chat.ainvoke("What is Headrace?")).content == answer.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_the_pydantic_model(chat: Any, method: str) -> None:
    assert isinstance(chat.with_structured_output(Weather, method=method).invoke("How is Oslo?"), Weather)


def test_json_mode(chat: Any) -> None:
    mode = chat.bind(max_tokens=400).with_structured_output(None, method="json_mode", include_raw=True)
    answer = mode.invoke("Answer in JSON.")
    assert isinstance(answer["parsed"], dict) or answer["raw"].response_metadata["finish_reason"] == "length"


def test_a_round_trip_of_a_tool_call(chat: Any) -> None:
    asked = messages.HumanMessage("How is Oslo?")
    called = chat.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False).invoke([asked])
    (call,) = called.tool_calls
    assert call["name"] == "Weather"
    assert isinstance(Weather(**call["args"]), Weather)
    assert called.response_metadata["finish_reason"] == "tool_calls"
    result = messages.ToolMessage("7 degrees", tool_call_id=call["id"])
    answer = chat.bind_tools([Weather]).invoke([asked, called, result])
    assert isinstance(answer.content, str)


def test_a_streamed_tool_call(chat: Any) -> None:
    whole = None
    for chunk in chat.bind_tools([Weather], tool_choice="Weather").stream("How is Oslo?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert isinstance(Weather(**whole.tool_calls[0]["args"]), Weather)
