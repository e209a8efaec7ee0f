from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from service.api.answers import followed_trace
from service.api.answers.followed_trace import follow, look_up
from service.api.call_head import CallHead
from service.api.call_trace import CallTrace
from service.core.events import FinalEvent, Outcome
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.stats import RequestStats
from service.engine.async_engine import AsyncEngine
from tests.api.test_call_trace import STATS


class Engine:
    """Has made a token more of every request each time it is asked, up to `most`. answers: whether at all. on_asked: is
    told how often it was asked."""

    def __init__(
        self, most: int = 1000, answers: bool = True, on_asked: Callable[[int], None] = lambda num: None
    ) -> None:
        self.asked: list[Sequence[str]] = []
        self._on_asked = on_asked
        self._most = most
        self._answers = answers

    async def stats_so_far(self, request_ids: Sequence[str]) -> dict[str, RequestStats]:
        self.asked.append(request_ids)
        self._on_asked(len(self.asked))
        if not self._answers:
            await asyncio.Event().wait()
        return {each: replace(STATS, num_output_tokens=min(len(self.asked), self._most)) for each in request_ids}


def call(num_prompts: int = 2) -> CallTrace:
    requests = [Request(f"r{index}", (1, 2), SamplingParams(max_tokens=5), 10.0) for index in range(num_prompts)]
    return CallTrace(CallHead("c", 1, 10.0, ""), "m", requests)


def as_engine(engine: Engine) -> AsyncEngine:
    return cast(AsyncEngine, engine)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_trace, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(followed_trace, "LOOK_UP_WITHIN_S", 0.05)


def test_every_change_is_told_and_the_end_last() -> None:
    async def scene() -> None:
        trace, engine = call(), Engine()
        told = []
        async for text in follow(trace, as_engine(engine)):
            told.append(json.loads(text))
            if len(told) == 3:
                trace.note_end(0, FinalEvent(Outcome.FINISHED, STATS))
            if len(told) == 5:
                trace.note_end(1, None)
        assert [each["prompts"][1]["output_tokens"] for each in told] == [1, 2, 3, 4, 5, None]
        assert [each["outcome"] for each in told] == [*["running"] * 5, "aborted"]
        assert engine.asked[0] == ["r0", "r1"]
        assert engine.asked[-1] == ["r1"], "of what has ended nothing is asked"

    asyncio.run(scene())


def test_what_has_not_changed_is_not_told_again_and_the_end_is_not_waited_for() -> None:
    async def scene() -> None:
        trace = call(1)

        def end(num_asked: int) -> None:
            if num_asked == 3:
                trace.note_end(0, FinalEvent(Outcome.FINISHED, STATS))

        engine = Engine(most=1, on_asked=end)
        told = [json.loads(text)["outcome"] async for text in follow(trace, as_engine(engine))]
        assert told == ["running", "finished"]
        assert len(engine.asked) == 3

    asyncio.run(scene())


def test_an_end_wakes_who_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_trace, "LOOK_EVERY_S", 60.0)

    async def scene() -> None:
        trace = call(1)
        asyncio.get_running_loop().call_later(0.05, trace.note_end, 0, None)
        async with asyncio.timeout(20):
            assert len([text async for text in follow(trace, as_engine(Engine()))]) == 2

    asyncio.run(scene())


def test_an_engine_that_does_not_answer_holds_nobody_up_for_long() -> None:
    async def scene() -> None:
        trace = call(1)
        began_s = time.monotonic()
        await look_up(trace, as_engine(Engine(answers=False)))
        assert time.monotonic() - began_s < 10
        assert trace.show().prompts[0].output_tokens is None

    asyncio.run(scene())


def test_a_follower_that_leaves_is_forgotten() -> None:
    async def scene() -> None:
        trace = call(1)
        following = follow(trace, as_engine(Engine()))
        await anext(following)
        assert len(trace._watchers) == 1
        await cast(AsyncGenerator[str, None], following).aclose()
        assert trace._watchers == []

    asyncio.run(scene())
