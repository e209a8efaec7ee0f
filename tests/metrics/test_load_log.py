from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from service.core.stats import EngineSnapshot
from service.metrics.instruments import Instruments
from service.metrics.load_log import LoadLog, log_load
from service.metrics.recorder import Recorder
from tests.metrics.test_recorder import ITERATION


@pytest.fixture
def instruments() -> Instruments:
    return Instruments(CollectorRegistry())


def test_it_tells_what_happened_since_it_was_last_asked(instruments: Instruments) -> None:
    snapshot = EngineSnapshot(num_running=3, num_waiting=2, num_swapped=1, used_blocks=5, total_blocks=20)
    recorder, load = Recorder(instruments), LoadLog(instruments, lambda: snapshot)
    recorder.record_iteration(ITERATION)
    recorder.record_rejection("overloaded")
    recorder.record_rejection("invalid_request_error")
    assert load.line(0.5) == (
        "requests: 3 running, 2 waiting (1 swapped), KV cache 25% used;"
        " tokens a second: 10 of prompts (80% cached), 6 generated; 3 preemptions, 2 refusals"
    )
    recorder.record_iteration(ITERATION._replace(prefix_queried_tokens=0, num_dropped=0, num_swapped=0))
    assert "10 of prompts (0% cached), 6 generated; 0 preemptions, 0 refusals" in (load.line(0.5) or "")


def test_it_is_silent_while_there_is_nothing_to_do(instruments: Instruments) -> None:
    now = EngineSnapshot()
    recorder, load = Recorder(instruments), LoadLog(instruments, lambda: now)
    assert load.line(1) is None
    recorder.record_iteration(ITERATION)
    assert load.line(1) is not None  # what came to its end meanwhile is told
    assert load.line(1) is None
    now = EngineSnapshot(num_waiting=1)
    assert "1 waiting" in (load.line(1) or "")  # nothing moves, which is what somebody wants to know


def test_before_there_is_an_engine_it_is_silent(instruments: Instruments) -> None:
    assert LoadLog(instruments, lambda: None).line(1) is None


def test_it_is_logged_again_and_again(instruments: Instruments, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        logging_load = asyncio.create_task(log_load(LoadLog(instruments, lambda: EngineSnapshot(num_running=7)), 0.001))
        async with asyncio.timeout(5):
            while caplog.text.count("requests: 7 running") < 3:
                await asyncio.sleep(0.001)
        logging_load.cancel()

    with caplog.at_level(logging.INFO, "headrace"):
        asyncio.run(scenario())
