from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, count
from random import Random

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.core.sequence import Sequence
from service.engine.engine import Engine
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.decode_batch import DecodeBatch, DecodeMembers
from service.scheduler.history import History
from service.scheduler.lanes import Lanes, LaunchedGroups, LaunchedIterations
from tests.engine.harness import VOCABULARY, Harness, sequence_ids
from tests.engine.late_executor import LateIteration
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_model import ToyExecutor
from tests.scheduler.test_request_pool import make_group

Patch = pytest.MonkeyPatch


class Recording(ToyExecutor):
    """Records which sequences each plan computes. With several lanes, checks that none is in flight already."""

    def __init__(self, num_blocks: int = 64, transfer_delay: int = 0, num_lanes: int = 1) -> None:
        super().__init__(num_blocks, 4, VOCABULARY, transfer_delay)
        self.launched: list[list[int]] = []
        self._running: list[list[int]] = []
        self._num_lanes = num_lanes

    def launch(self, plan: IterationPlan) -> LateIteration:
        ids = sequence_ids(plan)
        assert self._num_lanes == 1 or set(ids).isdisjoint(chain.from_iterable(self._running)), "in two batches"
        self._running.append(ids)
        if plan.computes:
            self.launched.append(ids)
        return super().launch(plan)

    def execute(self, plan: IterationPlan) -> IterationResult:
        del self._running[0]
        return super().execute(plan)


def test_figure_8a_of_orca():
    """Three stages, batches of two, requests A to F: AB CD EF AB CD EF, and no batch is cut into microbatches."""
    executor = Recording()
    harness = Harness(executor=executor, max_num_seqs=2, num_lanes=3)
    for number in range(6):
        harness.add(harness.request((number, 1, 2), 4))
    most_in_flight = 0
    while harness.engine.has_work:
        harness.step()
        most_in_flight = max(most_in_flight, len(harness.engine._launched))
    assert executor.launched == [[0, 1], [2, 3], [4, 5]] * 4
    assert most_in_flight == 2, "the step that launches the third waits for the first"
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_a_step_waits_only_when_as_many_batches_run_as_there_are_stages():
    """Algorithm 1, line 7."""
    waited = []
    harness = Harness(executor=Recording(), max_num_seqs=1, num_lanes=3)
    complete = harness.engine._complete
    harness.engine._complete = lambda launched: (waited.append(harness.engine._batch_size), complete(launched))
    for number in range(3):
        harness.add(harness.request((number,), 3))
    for num_launched in (1, 2):
        harness.engine.step()
        assert (len(harness.engine._launched), waited) == (num_launched, [])
    harness.engine.step()
    assert (len(harness.engine._launched), len(waited)) == (2, 1)
    harness.run()


@pytest.mark.parametrize("num_lanes", [1, 2, 3])
def test_who_came_first_has_run_no_fewer_iterations(num_lanes: int):
    """ORCA, section 4.2: iteration-level first come, first served, whatever other requests come and end."""
    for seed in range(6):
        chance = Random(seed)
        executor = Recording(600)
        harness = Harness(600, executor=executor, max_num_seqs=4, max_num_batched_tokens=400, num_lanes=num_lanes)
        for _ in range(30):
            for _ in range(chance.choice([0, 1, 1, 4])):
                harness.add(harness.request((chance.randrange(9),) * chance.randint(1, 9), chance.randint(1, 12)))
            harness.step()
            num_run = Counter(sequence_id for ids in executor.launched for sequence_id in ids)
            live = [group.arrival_order for group in harness.scheduler.pool.groups()]
            runs = [num_run[order] for order in sorted(live)]
            assert runs == sorted(runs, reverse=True)
        harness.run()


def test_lanes_are_kept_equal_when_requests_end():
    executor = Recording()
    harness = Harness(executor=executor, max_num_seqs=8, num_lanes=2)
    for number in range(8):
        harness.add(harness.request((number, 1), 20 if number < 4 else 3))
    for _ in range(14):
        harness.step()
    assert [batch.num_seqs for batch in harness.scheduler.lanes] == [2, 2]
    assert executor.launched[0] == [0, 1, 2, 3], "who came first stood together, and alone in the end"
    harness.run()
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_a_lane_that_is_short_of_memory_is_not_passed_by_the_others_for_ever():
    harness = Harness(num_blocks=9, max_num_seqs=2, num_lanes=3, max_num_batched_tokens=12)
    for number in range(6):
        harness.add(harness.request((number, 1, 2), 25))
    harness.run(max_steps=1500)
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def scenario(num_lanes: int) -> None:
    """Choices, beams, shared prefixes, swaps and an abort in a small cache, checked against the oracle."""
    executor = Recording(16, 1, num_lanes)
    harness = Harness(
        16, 4, 3, 24, executor=executor, preemption=SometimesSwap(0.5), num_host_blocks=8, num_lanes=num_lanes
    )
    prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    for number, max_tokens in enumerate((26, 14, 30, 6, 9)):
        harness.add(harness.request(prompt[: 9 - number], max_tokens, n=1 + number % 2, seed=number))
    harness.add(harness.beam_request(prompt[:3], 6, width=3, n=2))
    for _ in range(5):
        harness.step()
    harness.engine.requests.abort("request-2")
    harness.collect()
    harness.run(max_steps=500)
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice, complete=request_id != "request-2")
    harness.check_nothing_left()


@pytest.mark.parametrize("num_lanes", [1, 2, 3])
def test_without_a_fault_the_scenario_passes(num_lanes: int):
    scenario(num_lanes)


def a_batch_returned_twice(patch: Patch) -> None:
    complete = Engine._complete

    def twice(self, launched):
        complete(self, launched)
        if launched.plan.computes and self._launched:
            complete(self, launched)

    patch.setattr(Engine, "_complete", twice)


def batches_returned_in_another_order(patch: Patch) -> None:
    def newest_first(self, num_launched):
        while len(self._launched) > num_launched:
            self._complete(self._launched.pop())

    patch.setattr(Engine, "_complete_all_but", newest_first)


def a_request_in_two_batches(patch: Patch) -> None:
    patch.setattr(LaunchedIterations, "has", lambda self, batch: False)


def a_result_lost(patch: Patch) -> None:
    """The scheduler takes its batch for computed."""
    take = DecodeBatch.take
    patch.setattr(DecodeBatch, "take", lambda self, *rest: take(self, *rest) if self._last_number != 5 else {})


def versions_of_each_lane_alone(patch: Patch) -> None:
    """So an executor mistakes one lane's decodes for another's."""

    def apart(self: Lanes, blocks: BlockManager, num_lanes: int, history: History, *_: object) -> None:
        self._batches = [DecodeBatch(blocks, count(1), history) for _ in range(num_lanes)]
        self._turn, self.batch = 0, self._batches[0]

    patch.setattr(Lanes, "__init__", apart)


@pytest.mark.parametrize("num_lanes", [2, 3])
@pytest.mark.parametrize(
    "fault",
    [
        a_batch_returned_twice,
        batches_returned_in_another_order,
        a_request_in_two_batches,
        a_result_lost,
        versions_of_each_lane_alone,
    ],
)
def test_a_fault_is_caught(fault: Callable[[Patch], None], num_lanes: int, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(num_lanes)


def make_launched() -> tuple[LaunchedIterations, BlockManager, Sequence]:
    blocks = BlockManager(4, 2, NoPrefixCache())
    blocks.allocate(0, 4, [])
    return LaunchedIterations(blocks), blocks, make_group("a").leader


def test_what_a_running_iteration_touches_is_kept_until_it_has_finished():
    launched, blocks, sequence = make_launched()
    groups = LaunchedGroups(None, [make_group("a")])
    sequence.last_iteration = launched.next_number
    launched.begin(groups)
    launched.begin(LaunchedGroups(None, []))
    launched.free(sequence)
    assert blocks.pool.num_used == 2
    assert launched.finish() == groups
    assert blocks.pool.num_used == 0, "the second iteration knows nothing of it"
    assert len(launched) == 1


def test_with_nothing_running_blocks_are_free_at_once():
    launched, blocks, sequence = make_launched()
    launched.free(sequence)
    assert blocks.pool.num_used == 0


def test_the_groups_of_an_iteration_are_in_the_order_of_its_plan():
    together, other = make_group("a"), make_group("b")
    members = DecodeMembers(History()).with_more([together], 0)
    assert LaunchedGroups(members, [other]).all() == [together, other]
    assert LaunchedGroups(None, [other]).all() == [other]
