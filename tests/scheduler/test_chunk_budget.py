from __future__ import annotations

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.kvcache.prefix_cache import NoPrefixCache
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload
from service.scheduler.chunk_budget import (
    DEEP_QUEUE,
    FEW_A_DECODE,
    MIN_CHUNK,
    PIECE,
    USUAL_TOKENS,
    FixedBudget,
    InPieces,
    InterTokenTarget,
)
from tests.engine.harness import Harness
from tests.engine.toy_model import ToyExecutor
from tests.manual_clock import ManualClock

BUDGET = 512


def device_s(workload: Workload, slowness: float = 1.0) -> float:
    seconds = 4e-3 + 1e-4 * workload.num_tokens + 1e-8 * workload.num_pairs + 1e-7 * workload.num_read
    return slowness * seconds


def learnt() -> IterationTime:
    iteration_time = IterationTime()
    for start in (0, 500):
        for num_tokens in (2, 30, 60, 100, 200, 400, 512, 1500):
            workload = Workload.of_chunk(start, num_tokens)
            iteration_time.calibrate(workload, device_s(workload))
    for count in (1, 10, 50, 100):
        for context in (1, 500):
            workload = Workload(count, 0, count * context, 0, count, 0)
            iteration_time.observe(workload, device_s(workload), is_decode=True)
    iteration_time.fit()
    return iteration_time


def test_without_a_target_prompts_get_what_decodes_leave():
    assert FixedBudget(BUDGET).num_tokens(20, 20 * 100, 0, 9999) == BUDGET - 20


@pytest.mark.parametrize(
    ("count", "num_waiting", "least"),
    [
        (1, 2048, PIECE),
        (13, 13 * FEW_A_DECODE, PIECE // 2),
        (13, 13 * FEW_A_DECODE + 1, PIECE),
        (13, 2048, PIECE),
        (PIECE // 2, 2048, PIECE // 2),
        (PIECE // 2 + 1, 1, PIECE // 2),
        (PIECE, 2048, PIECE // 2),
        (1024, 2048, PIECE // 2),
    ],
)
def test_a_few_prompts_beside_decodes_are_computed_in_pieces(count: int, num_waiting: int, least: int):
    num_tokens = InPieces(2048).num_tokens(count, count * 100, 0, num_waiting)
    assert (num_tokens + count) % PIECE == 0
    assert least <= num_tokens < least + PIECE


def test_pieces_are_within_the_token_budget_and_end_where_throughput_counts():
    budget = InPieces(2048)
    assert budget.num_tokens(13, 13 * 100, 0, 2049) == 2048 - 13, "more waits than an iteration computes"
    assert budget.num_tokens(0, 0, 0, 300) == 2048, "nobody waits for a token"
    assert InPieces(400).num_tokens(13, 13 * 100, 0, 300) == 400 - 13
    assert InPieces(400).num_tokens(399, 399 * 100, 0, 300) == 1


@pytest.mark.parametrize("count", [0, 13, 1500])
def test_the_whole_budget_is_for_deep_queues(count: int):
    """Otherwise decodes and new requests would wait twice as long, for 2 % more throughput."""
    budget = InPieces(4096)
    assert budget.num_tokens(count, count * 100, 0, DEEP_QUEUE * 4096) == 4096 - count
    assert budget.num_tokens(count, count * 100, 0, DEEP_QUEUE * 4096 - 1) == max(USUAL_TOKENS, 2 * count) - count


def test_answers_go_on_between_the_pieces_of_a_prompt():
    executor = TimedExecutor()
    harness = Harness(400, 16, max_num_batched_tokens=2048, executor=executor, chunk_budget=InPieces(2048))
    executor.clock = harness.clock
    harness.add(harness.request((1, 2, 3), 2000))
    harness.step()
    executor.seconds.clear()
    name = harness.request(tuple(range(1800)), 1).request_id
    harness.add(harness.requests[name])
    while name not in harness.finals:
        harness.step()
    assert [num_tokens for _, num_tokens in executor.seconds if num_tokens] == [511, 511, 511, 267]


def test_the_chunk_is_the_largest_that_ends_in_time():
    budget = InterTokenTarget(learnt(), 0.030, BUDGET)
    for count, start in ((1, 0), (20, 0), (20, 400), (100, 0)):
        chunk = budget.num_tokens(count, count * 100, start, 9999)
        assert MIN_CHUNK < chunk < BUDGET - count
        for num_tokens, in_time in ((chunk - 2, True), (chunk + 3, False)):
            workload = Workload.of_chunk(start, num_tokens, count, count * 100)
            assert (device_s(workload) <= 0.030) is in_time


def test_with_nobody_decoding_or_nothing_known_the_budget_is_whole():
    assert InterTokenTarget(learnt(), 0.001, BUDGET).num_tokens(0, 0, 0, 9999) == BUDGET
    assert InterTokenTarget(IterationTime(), 0.001, BUDGET).num_tokens(5, 5 * 100, 0, 9999) == BUDGET - 5


def test_never_below_the_minimum_and_never_above_the_token_budget():
    assert InterTokenTarget(learnt(), 0.001, BUDGET).num_tokens(5, 5 * 100, 0, 9999) == MIN_CHUNK
    assert InterTokenTarget(learnt(), 0.001, BUDGET).num_tokens(500, 500 * 100, 0, 9999) == BUDGET - 500
    assert InterTokenTarget(learnt(), 9.0, BUDGET).num_tokens(5, 5 * 100, 0, 9999) == BUDGET - 5


class TimedExecutor(ToyExecutor):
    """Advances the clock by the iteration's cost."""

    def __init__(self) -> None:
        super().__init__(400, 16, 1000)
        self.clock: ManualClock | None = None
        self.slowness = 1.0
        self.seconds: list[tuple[float, int]] = []  # of iterations with decodes: and their prompt tokens

    def execute(self, plan: IterationPlan) -> IterationResult:
        assert self.clock is not None
        workload = Workload.of(plan)
        seconds = device_s(workload, self.slowness)
        self.clock.advance(seconds)
        num_decodes = sum(len(item.token_ids) == 1 for item in plan.scheduled)
        if num_decodes:
            self.seconds.append((seconds, workload.num_tokens - num_decodes))
        return super().execute(plan)


def test_the_budget_follows_the_machine():
    executor, iteration_time = TimedExecutor(), learnt()
    harness = Harness(
        400,
        16,
        max_num_batched_tokens=BUDGET,
        executor=executor,
        prefix_cache=NoPrefixCache(),
        chunk_budget=InterTokenTarget(iteration_time, 0.030, BUDGET),
    )
    executor.clock = harness.clock
    harness.cost.iteration_time = iteration_time  # what the scheduler observes
    harness.add(harness.request((1, 2, 3), 2000))

    def chunks_of_a_prompt() -> list[tuple[float, int]]:
        executor.seconds.clear()
        number = len(harness.requests)
        name = harness.request(tuple(range(number, number + 1200)), 1).request_id
        harness.add(harness.requests[name])
        while name not in harness.finals:
            harness.step()
        return [(seconds, chunk) for seconds, chunk in executor.seconds if chunk > 0]

    chunks = chunks_of_a_prompt()
    assert len(chunks) >= 3
    assert all(seconds <= 0.031 for seconds, _ in chunks)
    assert max(chunk for _, chunk in chunks) > 200
    executor.slowness = 2.0
    for _ in range(60):
        chunks = chunks_of_a_prompt()
    assert all(seconds <= 0.033 for seconds, _ in chunks[:-1])
    assert MIN_CHUNK <= max(chunk for _, chunk in chunks) < 130
    harness.run()
    harness.check_against_oracle("request-0")
