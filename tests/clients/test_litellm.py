"""LiteLLM against the real service. Installed by the extra `clients`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
litellm = pytest.importorskip("litellm")

QUESTION = [{"role": "user", "content": "What is Headrace?"}]
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


class Verdict(BaseModel):
    good: bool


@pytest.fixture
def where(base_url: str) -> dict[str, Any]:
    return {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "none", "max_tokens": 100, "temperature": 0}


def test_completes_and_streams(where: dict[str, Any]) -> None:
    answer = litellm.completion(messages=QUESTION, **where)
    text = answer.choices[0].message.content
    assert "Headrace" in text
    assert answer.usage.completion_tokens > 0
    streamed = litellm.completion(messages=QUESTION, stream=True, **where)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text
    assert asyncio.run(litellm.acompletion(messages=QUESTION, **where)).choices[0].message.content == text


def test_hosted_vllm_is_a_name_for_us_too(where: dict[str, Any]) -> None:
    answer = litellm.completion(messages=QUESTION, **where | {"model": f"hosted_vllm/{MODEL}"})
    assert "Headrace" in answer.choices[0].message.content


def test_text_completion(where: dict[str, Any]) -> None:
    answer = litellm.text_completion(prompt="Headrace is", **where | {"model": f"text-completion-openai/{MODEL}"})
    assert answer.choices[0].text


def test_structured_output(where: dict[str, Any]) -> None:
    answer = litellm.completion(messages=QUESTION, response_format=Verdict, **where)
    assert isinstance(Verdict.model_validate_json(answer.choices[0].message.content), Verdict)


def test_a_tool_call(where: dict[str, Any]) -> None:
    answer = litellm.completion(messages=QUESTION, tools=[NOW], tool_choice="required", **where)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})


def test_errors_are_its_own(where: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=QUESTION, n=1000, **where)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=QUESTION, **where | {"model": "openai/other"})
