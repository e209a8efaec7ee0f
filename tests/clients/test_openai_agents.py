"""OpenAI's Agents SDK against the real service, by its default (/v1/responses) and by chat completions: runs
with tools, streamed runs, typed answers, handoffs.

Installed by the extra `clients`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
agents = pytest.importorskip("agents")


class Verdict(BaseModel):
    good: bool
    why: Literal["fast", "small", "plain"]


@pytest.fixture(params=["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def model(base_url: str, request: pytest.FixtureRequest) -> Any:
    """For one event loop."""
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    return getattr(agents, request.param)(MODEL, client)


def settings(**fields: Any) -> Any:
    return agents.ModelSettings(temperature=0.0, max_tokens=150, include_usage=True, **fields)


def test_a_run_whole_and_streamed(model: Any) -> None:
    agent = agents.Agent("guide", instructions="Be brief.", model=model, model_settings=settings())

    async def runs() -> tuple[Any, Any]:
        whole = await agents.Runner.run(agent, "What is Headrace?")
        streamed = agents.Runner.run_streamed(agent, "What is Headrace?")
        kinds = [event.type async for event in streamed.stream_events()]
        assert "raw_response_event" in kinds
        return whole, streamed

    whole, streamed = asyncio.run(runs())
    assert "Headrace" in whole.final_output
    assert streamed.final_output == whole.final_output
    assert whole.context_wrapper.usage.output_tokens == streamed.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_its_result_goes_back(model: Any, streamed: bool) -> None:
    asked: list[str] = []

    def weather(unit: Literal["C", "F"]) -> str:
        """How warm it is."""
        asked.append(unit)
        return f"7 degrees {unit}"

    agent = agents.Agent(
        "forecaster",
        tools=[agents.function_tool(weather)],
        model=model,
        model_settings=settings(tool_choice="required", parallel_tool_calls=False),
    )

    async def run() -> Any:
        if not streamed:
            return await agents.Runner.run(agent, "How is Oslo?")
        result = agents.Runner.run_streamed(agent, "How is Oslo?")
        async for _ in result.stream_events():
            pass
        return result

    result = asyncio.run(run())
    assert len(asked) == 1
    assert asked[0] in ("C", "F")
    kinds = [type(item).__name__ for item in result.new_items]
    assert kinds == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    assert isinstance(result.final_output, str)


def test_a_typed_answer(model: Any) -> None:
    agent = agents.Agent("judge", output_type=Verdict, model=model, model_settings=settings())
    assert isinstance(asyncio.run(agents.Runner.run(agent, "Is it good?")).final_output, Verdict)


def test_a_handoff(model: Any) -> None:
    guide = agents.Agent("guide", model=model, model_settings=settings())
    front = agents.Agent(
        "front", handoffs=[guide], model=model, model_settings=settings(tool_choice="transfer_to_guide")
    )
    result = asyncio.run(agents.Runner.run(front, "What is Headrace?"))
    assert result.last_agent is guide
    assert isinstance(result.final_output, str)


def test_a_session_remembers(model: Any) -> None:
    agent = agents.Agent("guide", model=model, model_settings=settings())
    session = agents.SQLiteSession("one")

    async def talk() -> list[Any]:
        await agents.Runner.run(agent, "What is Headrace?", session=session)
        await agents.Runner.run(agent, "How do I watch the batch size?", session=session)
        return list(await session.get_items())

    items = asyncio.run(talk())
    session.close()
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]


def test_a_session_is_made_shorter(base_url: str) -> None:
    """By /v1/responses/compact: what the user said stays, and a summary stands for the rest."""
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    agent = agents.Agent("guide", model=agents.OpenAIResponsesModel(MODEL, client), model_settings=settings())

    async def talk() -> list[Any]:
        kept = agents.SQLiteSession("two")
        session = agents.memory.OpenAIResponsesCompactionSession(
            "two", kept, client=client, model="gpt-4.1", compaction_mode="input"
        )
        session.model = MODEL  # the constructor takes OpenAI's own names alone
        await agents.Runner.run(agent, "What is Headrace?", session=session)
        await session.run_compaction({"force": True})
        shorter = list(await session.get_items())
        await agents.Runner.run(agent, "And what is a headrace?", session=session)
        kept.close()
        return shorter

    user, summary = asyncio.run(talk())
    assert (user["role"], summary["type"]) == ("user", "compaction")
