"""Proves that the suite can fail where adapters are concerned: each fault put in on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from service.core.adapter import Adapter, AdapterLoad
from service.core.events import Outcome
from service.core.iteration import IterationPlan
from service.core.request import Request
from service.engine.live_requests import LiveRequests
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_manager import BlockManager
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import Harness
from tests.engine.late_executor import LateIteration
from tests.engine.test_engine import SometimesSwap

Patch = pytest.MonkeyPatch


class LosesALoad(FaultyExecutor):
    """The launch that would load the fourth adapter fails."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(frozenset(), num_blocks=num_blocks, transfer_delay=1)
        self._num_loads = 0

    def launch(self, plan: IterationPlan) -> LateIteration:
        before, self._num_loads = self._num_loads, self._num_loads + len(plan.adapter_loads)
        if before < 4 <= self._num_loads:
            self.failing_launches = frozenset({self.num_launched + 1})
        return super().launch(plan)


def adapter_scenario(overlap: bool) -> None:
    """Four adapters, two with equal weights, in two slots and a cache too small for all. Their requests share
    beginnings and preempt each other both ways, and one load fails."""
    executor = LosesALoad(num_blocks=20)
    harness = Harness(
        num_blocks=20,
        max_num_batched_tokens=24,
        executor=executor,
        preemption=SometimesSwap(0.5),
        num_host_blocks=20,
        num_adapter_slots=2,
        overlap=overlap,
    )
    executor.users = harness.running_with
    executor.moving = harness.blocks.swap_space.swapping_sequence_ids
    adapters = [None, *(harness.adapter(2, digest) for digest in ("a", "b", "twins", "twins"))]
    groups = []
    for number in (4, 2, 2, 4, 0, 3, 1, 0, 1, 0, 2, 3, 1):
        prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9 + number % 2)
        request = harness.request(prompt, 14, 1 + len(groups) % 2, seed=number, adapter=adapters[number])
        assert harness.add(request)
        groups.append(harness.scheduler.pool.get(request.request_id))
        if number == 3:
            harness.step()
    harness.run(max_steps=500)
    for group in groups:
        is_whole = not executor.hit.intersection(sequence.sequence_id for sequence in group.sequences)
        assert (harness.finals[group.request.request_id].outcome is Outcome.FINISHED) == is_whole
        for choice in range(group.request.sampling.n):
            harness.check_against_oracle(group.request.request_id, choice, complete=is_whole)
    harness.check_nothing_left()
    recoveries = {kept.recovery for stats, _, _ in harness.sink.requests for kept in stats.preemptions}
    assert recoveries == {"swap", "recompute"}
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > 0
    assert sum(stats.num_adapter_evictions for stats in harness.sink.iterations) > 2
    assert executor.hit


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_of_adapters_passes(overlap: bool):
    adapter_scenario(overlap)


def a_load_not_told(patch: Patch) -> None:
    load_adapter = BlockManager.load_adapter
    patch.setattr(BlockManager, "load_adapter", lambda self, adapter: load_adapter(self, adapter) and None)


def an_adapter_in_use_goes(patch: Patch) -> None:
    """It counts as idle as soon as it is loaded."""
    place = AdapterSlots.place

    def idle(self: AdapterSlots, adapter: Adapter, block_ids: list[int]) -> AdapterLoad:
        self._idle[adapter.adapter_id] = None
        self.num_idle_blocks += adapter.num_blocks
        return place(self, adapter, block_ids)

    patch.setattr(AdapterSlots, "place", idle)


def a_block_shared_by_two_adapters(patch: Patch) -> None:
    place = AdapterSlots.place

    def shared(self: AdapterSlots, adapter: Adapter, block_ids: list[int]) -> AdapterLoad:
        for resident in self._residents.values():
            self._pool.release_empty(block_ids[:1])
            block_ids = [resident.block_ids[0], *block_ids[1:]]
            self._pool.share(block_ids[0])
            break
        return place(self, adapter, block_ids)

    patch.setattr(AdapterSlots, "place", shared)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def an_adapters_block_given_to_a_sequence(patch: Patch) -> None:
    place = AdapterSlots.place

    def free(self: AdapterSlots, adapter: Adapter, block_ids: list[int]) -> AdapterLoad:
        self._pool.release_empty(block_ids[:1])
        return place(self, adapter, block_ids)

    patch.setattr(AdapterSlots, "place", free)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def a_slot_of_two_adapters(patch: Patch) -> None:
    place = AdapterSlots.place

    def first(self: AdapterSlots, adapter: Adapter, block_ids: list[int]) -> AdapterLoad:
        load = place(self, adapter, block_ids)
        self._residents[adapter.adapter_id] = self._residents[adapter.adapter_id]._replace(slot=1)
        return load._replace(slot=1)

    patch.setattr(AdapterSlots, "place", first)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def a_slot_named_that_it_had_before(patch: Patch) -> None:
    slot_of, first = AdapterSlots.slot_of, dict[Adapter | None, int]()
    patch.setattr(AdapterSlots, "slot_of", lambda self, adapter: first.setdefault(adapter, slot_of(self, adapter)))


def an_adapter_that_went_believed_there(patch: Patch) -> None:
    remove = AdapterSlots._remove

    def keep(self: AdapterSlots, adapter_id: int) -> None:
        resident = self._residents[adapter_id]
        remove(self, adapter_id)
        self._residents[adapter_id] = resident

    patch.setattr(AdapterSlots, "_remove", keep)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def a_prefix_shared_across_weights(patch: Patch) -> None:
    patch.setattr(Request, "prefix_salt", property(lambda self: self.cache_salt))


def an_overwritten_prefix_still_known(patch: Patch) -> None:
    load_adapter = BlockManager.load_adapter

    def unforgotten(self: BlockManager, adapter: Adapter) -> AdapterLoad | None:
        with Patch.context() as inner:
            inner.setattr(self._prefix_cache.known, "forget", lambda block_ids: None)
            return load_adapter(self, adapter)

    patch.setattr(BlockManager, "load_adapter", unforgotten)


def a_lost_load_believed_done(patch: Patch) -> None:
    lose = LiveRequests.lose
    patch.setattr(LiveRequests, "lose", lambda self, groups, plan: lose(self, groups, replace(plan, adapter_loads=())))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        a_load_not_told,
        an_adapter_in_use_goes,
        a_block_shared_by_two_adapters,
        an_adapters_block_given_to_a_sequence,
        a_slot_of_two_adapters,
        a_slot_named_that_it_had_before,
        an_adapter_that_went_believed_there,
        a_prefix_shared_across_weights,
        an_overwritten_prefix_still_known,
        a_lost_load_believed_done,
    ],
)
def test_a_fault_of_adapters_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        adapter_scenario(overlap)
