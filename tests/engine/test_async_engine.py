from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.config import SchedulerConfig
from service.core.clock import Clock, MonotonicClock
from service.core.events import FinalEvent, Outcome, StreamEvent, TokenEvent
from service.core.iteration import IterationPlan, IterationResult
from service.engine.async_engine import AsyncEngine
from service.engine.commands import Stop
from service.engine.engine_watch import MAX_FAILED_IN_A_ROW
from service.engine.ports import TrainingExecutor
from service.engine.streams import RequestStream
from service.errors import ContextLengthExceeded, InvalidRequest, Overloaded, ServerError, Unavailable
from service.scheduler.waiting_tokens import CHUNK_TOKENS
from tests.engine.harness import VOCABULARY, Harness, as_token_event
from tests.engine.toy_model import ToyExecutor
from tests.manual_clock import ManualClock


class GatedExecutor(ToyExecutor):
    """Computes only while the gate is open. one_at_a_time: each iteration closes the gate again."""

    def __init__(self, num_blocks: int = 64) -> None:
        super().__init__(num_blocks, 4, VOCABULARY)
        self.gate = threading.Event()
        self.gate.set()
        self.one_at_a_time = False

    def execute(self, plan: IterationPlan) -> IterationResult:
        assert self.gate.wait(10)
        if self.one_at_a_time:
            self.gate.clear()
        return super().execute(plan)


async def next_events(stream: RequestStream) -> list[StreamEvent]:
    told = asyncio.Event()
    stream.read_by(told.set)
    if not stream.events:
        await told.wait()
    return stream.take()


async def collect(stream: RequestStream) -> tuple[list[int], FinalEvent]:
    tokens: list[int] = []
    while True:
        for event in map(as_token_event, await next_events(stream)):
            if isinstance(event, TokenEvent):
                tokens.append(event.token_id)
            else:
                return tokens, event


def run(
    scenario: Callable[[AsyncEngine, Harness], Awaitable[None]],
    executor: ToyExecutor | None = None,
    max_waiting_requests: int = 100,
    stuck_after_s: float = 10.0,
    max_waiting_s: float = 600.0,
    clock: Clock | None = None,
    num_blocks: int = 64,
    num_adapter_slots: int = 0,
    trainings: TrainingExecutor | None = None,
) -> list[BaseException]:
    """Run the scenario against a started engine and drain it. Returns the faults that the engine died of."""
    deaths: list[BaseException] = []

    async def scene() -> None:
        harness = Harness(
            num_blocks,
            max_num_seqs=2,
            executor=executor,
            num_adapter_slots=num_adapter_slots,
            trainings=trainings,
        )
        config = SchedulerConfig(2, 16, 0.0, max_waiting_requests, 1000, max_waiting_s=max_waiting_s)
        engine = AsyncEngine(
            harness.engine,
            harness.blocks,
            config,
            clock or MonotonicClock(),
            deaths.append,
            stuck_after_s=stuck_after_s,
        )
        engine.start()
        await scenario(engine, harness)
        await engine.drain(10.0)
        assert not engine._streams
        assert harness.blocks.pool.num_used == 0

    asyncio.run(scene())
    return deaths


def test_a_request_is_answered():
    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        request = harness.request((1, 2, 3), 7)
        harness.tokens[request.request_id, 0], final = await collect(engine.submit(request))
        harness.check_against_oracle(request.request_id)
        assert final.outcome is Outcome.FINISHED
        assert final.stats.num_output_tokens == 7
        assert engine.ailment() is None

    assert run(scenario) == []


def test_what_is_known_so_far_is_told_of_those_that_have_not_ended():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.one_at_a_time = True
        running = harness.request((1, 2, 3), 7)
        stream = engine.submit(running)
        await next_events(stream)
        asking = asyncio.ensure_future(engine.stats_so_far([running.request_id, "another"]))
        await asyncio.sleep(0)
        given_up = asyncio.ensure_future(engine.stats_so_far([running.request_id]))
        await asyncio.sleep(0)
        given_up.cancel()
        executor.one_at_a_time = False
        executor.gate.set()
        stats = await asking
        assert list(stats) == [running.request_id]
        assert 1 <= stats[running.request_id].num_output_tokens < 7
        assert stats[running.request_id].first_token_s is not None
        await collect(stream)
        assert await engine.stats_so_far([running.request_id]) == {}

    assert run(scenario, executor) == []


def test_what_can_never_fit_is_refused_with_both_numbers():
    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        with pytest.raises(ContextLengthExceeded, match=r"need 304 tokens.*holds 256"):
            engine.submit(harness.request((1,) * 100, 205))
        with pytest.raises(InvalidRequest, match=r"n must be at most 2 on this server .*, got 3"):
            engine.submit(harness.request((1,), 1, n=3))

    run(scenario)


def test_what_never_fits_beside_its_adapter_is_refused_with_the_adapters_name_and_all_numbers():
    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        adapter = harness.adapter(14)
        with pytest.raises(
            ContextLengthExceeded, match=r"need 204 tokens of KV cache besides the 56 of the adapter adapter-1; .*256"
        ):
            engine.submit(harness.request((1,) * 100, 105, adapter=adapter))
        request = harness.request((1,) * 100, 101, adapter=adapter)
        harness.tokens[request.request_id, 0], _ = await collect(engine.submit(request))
        harness.check_against_oracle(request.request_id)
        engine.forget_adapter(adapter)

    run(scenario, num_adapter_slots=1)


def test_an_adapter_that_is_forgotten_leaves_once_who_runs_with_it_has_ended():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        adapter = harness.adapter(2)
        request = harness.request((1, 2, 3), 5, adapter=adapter)
        stream = engine.submit(request)
        engine.forget_adapter(adapter)
        engine.forget_adapter(harness.adapter(1))
        executor.gate.set()
        harness.tokens[request.request_id, 0], _ = await collect(stream)
        harness.check_against_oracle(request.request_id)

    assert run(scenario, executor, num_adapter_slots=1) == []


@pytest.mark.parametrize(("seconds", "retry_after_s"), [(0.1, 1.0), (20.0, 30.0), (500.0, 60.0)])
def test_the_time_to_come_back_is_what_the_queue_takes_at_the_pace_of_the_last_requests(seconds, retry_after_s):
    executor, clock = GatedExecutor(), ManualClock()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        for _ in range(2):
            await collect(engine.submit(harness.request((1,), 2)))
        clock.advance(seconds)
        executor.gate.clear()
        waiting = [engine.submit(harness.request((1,), 2)) for _ in range(3)]
        with pytest.raises(Overloaded) as refusal:
            engine.submit(harness.request((1,), 2))
        assert refusal.value.retry_after_s == pytest.approx(retry_after_s)
        executor.gate.set()
        for stream in waiting:
            await collect(stream)

    assert run(scenario, executor, max_waiting_requests=3, clock=clock) == []


def test_too_many_waiting_tokens_are_overload_too():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        with pytest.raises(Overloaded, match="prompt tokens are waiting; the limit is 1000"):
            for _ in range(20):
                engine.submit(harness.request((1,) * 100, 2))
        executor.gate.set()

    run(scenario, executor)


def test_a_beginning_that_waiting_prompts_share_counts_once_but_not_without_end():
    """The prefix cache will serve it to all but the first, but each request holds it in host memory."""
    executor = GatedExecutor(256)
    shared = tuple(range(2 * CHUNK_TOKENS))

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        async def submit_and_see_it_taken(number: int) -> RequestStream:
            stream = engine.submit(harness.request((*shared, number), 2))
            executor.gate.set()  # for one iteration; then the thread takes the request
            while engine.snapshot.num_waiting <= number:
                await asyncio.sleep(0.001)
            return stream

        executor.one_at_a_time = True
        running = engine.submit(harness.request((1,), 100, n=2))  # all the seats there are
        while engine.snapshot.num_running == 0:
            await asyncio.sleep(0.001)
        waiting = [await submit_and_see_it_taken(number) for number in range(8)]
        assert engine.snapshot.waiting_tokens == 8 * 513
        assert engine.snapshot.distinct_waiting_tokens == 512 + 8
        with pytest.raises(Overloaded, match=r"4104 prompt tokens .* counted for each request; the limit .* 4000"):
            engine.submit(harness.request((*shared, 8), 2))
        executor.one_at_a_time = False
        executor.gate.set()
        for stream in [running, *waiting]:
            assert (await collect(stream))[1].outcome is Outcome.FINISHED
        assert engine.snapshot.distinct_waiting_tokens == 0

    assert run(scenario, executor, num_blocks=256) == []


def test_overload_is_refused_with_a_time_to_come_back():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        streams = [engine.submit(harness.request((1,), 2)) for _ in range(3)]
        with pytest.raises(Overloaded, match="limit is 3") as refusal:
            for _ in range(3):
                streams.append(engine.submit(harness.request((1,), 2)))
        assert refusal.value.retry_after_s >= 1
        executor.gate.set()
        for stream in streams:
            assert (await collect(stream))[1].outcome is Outcome.FINISHED
        engine.submit(harness.request((1,), 2))

    run(scenario, executor, max_waiting_requests=3)


def test_who_waits_too_long_for_a_first_iteration_is_told_to_come_back():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        started = engine.submit(harness.request((1,), 3, n=2))
        while engine.snapshot.num_waiting == 0:
            await asyncio.sleep(0.001)
        waiting = engine.submit(harness.request((1,), 3))
        await asyncio.sleep(0.3)
        executor.gate.set()
        _, final = await collect(waiting)
        assert isinstance(final.error, Overloaded)
        assert "waited for 0.2 s" in str(final.error)
        assert (await collect(started))[1].outcome is Outcome.FINISHED

    run(scenario, executor, max_waiting_s=0.2)


def test_more_prompts_than_may_ever_wait_is_the_callers_mistake():
    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        with pytest.raises(InvalidRequest, match="4 prompts in one call; this server takes at most 3"):
            engine.check_accepts(4)

    run(scenario, max_waiting_requests=3)


def test_a_stuck_iteration_is_unhealthy_until_it_ends():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        stream = engine.submit(harness.request((1,), 2))
        await asyncio.sleep(0.3)
        assert engine.ailment() is not None
        executor.gate.set()
        await collect(stream)
        await asyncio.sleep(0.1)
        assert engine.ailment() is None

    run(scenario, executor, stuck_after_s=0.1)


def test_drain_lets_running_requests_finish_and_refuses_new_ones():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        stream = engine.submit(harness.request((1,), 5))
        draining = asyncio.create_task(engine.drain(10.0))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="shutting down"):
            engine.submit(harness.request((1,), 2))
        executor.gate.set()
        assert (await collect(stream))[1].outcome is Outcome.FINISHED
        await draining

    run(scenario, executor)


def test_drain_fails_what_has_not_finished_in_time():
    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        stream = engine.submit(harness.request((1,), 50))
        draining = asyncio.create_task(engine.drain(0.05))
        await asyncio.sleep(0.2)
        executor.gate.set()
        await draining
        final = (await collect(stream))[1]
        assert final.outcome is Outcome.FAILED
        assert isinstance(final.error, Unavailable)

    executor = GatedExecutor()
    run(scenario, executor)


@pytest.mark.parametrize("has_other", [False, True])
def test_drain_waits_for_background_requests_only_beside_others(has_other: bool):
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        others = [engine.submit(harness.request((2,), 30)) for _ in range(has_other)]
        stream = engine.submit(harness.request((1,), 3, is_background=True))
        draining = asyncio.create_task(engine.drain(60.0))
        await asyncio.sleep(0.05)
        executor.gate.set()
        await asyncio.wait_for(draining, 5)
        ends = [(await collect(each))[1].outcome for each in (*others, stream)]
        assert ends == ([Outcome.FINISHED] * 2 if has_other else [Outcome.FAILED])

    run(scenario, executor)


def test_drain_tells_the_streams_of_a_stuck_thread():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        stream = engine.submit(harness.request((1,), 5))
        await asyncio.sleep(0.05)
        await engine.drain(0.05)
        tokens, final = await asyncio.wait_for(collect(stream), 1)
        assert (tokens, final.outcome) == ([], Outcome.FAILED)
        assert isinstance(final.error, Unavailable)
        executor.gate.set()

    run(scenario, executor, stuck_after_s=0.1)


def test_a_thread_that_is_given_up_has_no_streams_left_and_takes_no_requests():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        stream = engine.submit(harness.request((1,), 5))
        while engine.busy_since_s is None:
            await asyncio.sleep(0.01)
        engine.give_up(ServerError("the engine hangs"))
        assert (await asyncio.wait_for(collect(stream), 1))[1].outcome is Outcome.FAILED
        assert engine.ailment() is not None
        with pytest.raises(Unavailable):
            engine.submit(harness.request((1,), 5))
        await asyncio.wait_for(engine.drain(30), 1)
        executor.gate.set()  # what it says now, nobody hears
        engine._loop.send(Stop(ServerError("over")))
        assert await asyncio.to_thread(engine._loop.join, 10.0)
        await asyncio.sleep(0)
        assert stream.events == []

    run(scenario, executor)


def test_a_request_that_the_thread_dies_before_taking_is_told():
    in_the_last = threading.Event()

    class BrokenExecutor(GatedExecutor):
        num_iterations = 0

        def execute(self, plan: IterationPlan) -> IterationResult:
            self.num_iterations += 1
            if self.num_iterations == MAX_FAILED_IN_A_ROW:
                in_the_last.set()
                assert self.gate.wait(10)
            raise RuntimeError("broken")

    executor = BrokenExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        streams = [engine.submit(harness.request((1,), 5)) for _ in range(2 * MAX_FAILED_IN_A_ROW)]
        assert await asyncio.to_thread(in_the_last.wait, 5)
        streams.append(engine.submit(harness.request((1,), 5)))
        executor.gate.set()
        for stream in streams:
            assert (await asyncio.wait_for(collect(stream), 2))[1].outcome is Outcome.FAILED

    assert len(run(scenario, executor)) == 1


def test_a_thread_that_outlives_the_event_loop_is_no_fault(caplog: pytest.LogCaptureFixture):
    """Also if the event loop is closed while the thread reports to it."""
    harness, deaths = Harness(), list[BaseException]()
    asked, is_closed = threading.Event(), threading.Event()

    class ClosedMeanwhile(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> asyncio.Handle:
            asked.set()
            assert is_closed.wait(10)
            return super().call_soon_threadsafe(*arguments, **options)

    async def make() -> AsyncEngine:
        engine = AsyncEngine(
            harness.engine, harness.blocks, SchedulerConfig(2, 16, 0.0, 9, 99), MonotonicClock(), deaths.append
        )
        engine.start()
        engine.submit(harness.request((1,), 5))
        return engine

    loop = ClosedMeanwhile()
    engine = loop.run_until_complete(make())
    assert asked.wait(10)
    loop.close()
    is_closed.set()
    engine._loop.send(Stop(ServerError("over")))
    assert engine._loop.join(10.0)
    assert not deaths
    assert not caplog.records


def test_abort_and_stop_choice():
    executor = GatedExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        aborted = harness.request((1,), 200)
        stream = engine.submit(aborted)
        engine.abort(aborted.request_id)
        engine.abort(aborted.request_id)
        engine.abort("nobody")
        executor.gate.set()
        assert (await collect(stream))[1].outcome is Outcome.ABORTED

        executor.one_at_a_time = True
        stopped = harness.request((1,), 120, n=2)
        stream = engine.submit(stopped)
        await next_events(stream)
        engine.stop_choice(stopped.request_id, 0)
        engine.stop_choice(stopped.request_id, 1)
        executor.one_at_a_time = False
        executor.gate.set()
        tokens, final = await collect(stream)
        assert len(tokens) < 2 * 119
        assert final.outcome is Outcome.FINISHED

    run(scenario, executor)


def test_a_broken_executor_ends_every_stream_and_is_told():
    class BrokenExecutor(GatedExecutor):
        def execute(self, plan: IterationPlan) -> IterationResult:
            super().execute(plan)
            raise RuntimeError("broken")

    executor = BrokenExecutor()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        executor.gate.clear()
        streams = [engine.submit(harness.request((1,), 5)) for _ in range(8)]
        executor.gate.set()
        for stream in streams:
            assert (await collect(stream))[1].outcome is Outcome.FAILED
        while engine.ailment() is None:
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            engine.submit(harness.request((1,), 5))

    assert len(run(scenario, executor)) == 1
