"""Proves that the suite can fail: each fault put in on purpose is caught by the oracle or by an invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.core.block_moves import Transfer
from service.kvcache import prefix_cache
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_pool import BlockPool, BlockSupply, KnownBlocks
from service.kvcache.block_table import BlockTable
from service.kvcache.prefix_cache import ChainedPrefixCache
from service.kvcache.swap_space import SwapSpace
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.group_preemption import GroupPreemption
from service.scheduler.lane_scheduling import LaneScheduling
from service.scheduler.lanes import LaunchedIterations
from service.scheduler.preemption import AlwaysSwap
from tests.engine.harness import Harness
from tests.engine.toy_model import ToyExecutor

Patch = pytest.MonkeyPatch


def scenario(overlap: bool) -> None:
    """Choices, shared prefixes, preemptions, a stop and an abort in a tiny cache, checked against the oracle."""
    harness = Harness(num_blocks=14, block_size=4, max_num_seqs=6, max_num_batched_tokens=24, overlap=overlap)
    harness.add(harness.request((1, 2, 3, 4, 5, 6, 7, 8, 9), 10))
    harness.add(harness.request((1, 2, 3, 4, 5, 6, 7, 8, 9), 10, n=2, seed=3))
    harness.add(harness.request((9, 9), 30, seed=5))
    stopping = harness.request((5, 6, 7), 30, seed=6, stops=frozenset(range(0, 1000, 4)))
    harness.add(stopping)
    harness.step()
    harness.step()
    harness.engine.requests.abort("request-2")
    harness.collect()
    harness.add(harness.request((1, 2, 3, 4, 5, 6, 7, 8, 1), 12, seed=9))
    harness.add(harness.request((1, 2, 3, 4, 5, 6, 7, 8, 2), 12, seed=9, salt="other"))
    harness.run(max_steps=500)
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > 0
    for request_id, choice in (
        ("request-0", 0),
        ("request-1", 0),
        ("request-1", 1),
        ("request-3", 0),
        ("request-4", 0),
    ):
        harness.check_against_oracle(request_id, choice)
    assert harness.blocks.pool.num_used == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_passes(overlap: bool):
    scenario(overlap)


def a_block_freed_early(patch: Patch) -> None:
    append = BlockManager.append

    def free_one(self: BlockManager, sequence_id: int, num_tokens: int, write_from: int) -> list:
        copies = append(self, sequence_id, num_tokens, write_from)
        if num_tokens == 13:
            self.pool.release(self.table(sequence_id).block_ids[0])
        return copies

    patch.setattr(BlockManager, "append", free_one)


def a_count_off_by_one(patch: Patch) -> None:
    share = BlockPool.share
    patch.setattr(BlockPool, "share", lambda self, block_id: (share(self, block_id), share(self, block_id)))


def a_table_shared_wrongly(patch: Patch) -> None:
    match = ChainedPrefixCache.match
    patch.setattr(ChainedPrefixCache, "match", lambda self, sequence, salt: match(self, sequence, salt)[::-1])


def a_salt_ignored(patch: Patch) -> None:
    patch.setattr(prefix_cache, "_first_parent", lambda salt: b"")


def a_copy_skipped(patch: Patch) -> None:
    append = BlockManager.append
    patch.setattr(BlockManager, "append", lambda self, *arguments: append(self, *arguments)[:0])


def a_change_of_table_not_told(patch: Patch) -> None:
    def silent(self: BlockTable, index: int, block_id: int) -> None:
        self.block_ids[index] = block_id

    patch.setattr(BlockTable, "replace", silent)


def an_evicted_block_still_known(patch: Patch) -> None:
    patch.setattr(KnownBlocks, "forget", lambda self, block_ids: None)


def a_token_too_many_believed_computed(patch: Patch) -> None:
    begin = LaneScheduling.begin

    def too_far(self, draft):
        begin(self, draft)
        for advance in draft.advances:
            advance.sequence.num_computed_tokens += advance.end == advance.sequence.num_prompt_tokens

    patch.setattr(LaneScheduling, "begin", too_far)


def blocks_kept_after_the_end(patch: Patch) -> None:
    free = LaunchedIterations.free

    def keep_some(self, sequence):
        if sequence.choice_index == 0:
            free(self, sequence)

    patch.setattr(LaunchedIterations, "free", keep_some)


def rows_mixed_up(patch: Patch) -> None:
    execute = ToyExecutor.execute

    def swapped(self, plan):
        result = execute(self, plan)
        return type(result)(result.token_ids[::-1])

    patch.setattr(ToyExecutor, "execute", swapped)


def blocks_freed_while_an_iteration_touches_them(patch: Patch) -> None:
    free = LaunchedIterations.free

    def at_once(self, sequence):
        sequence.last_iteration = 0
        free(self, sequence)

    patch.setattr(LaunchedIterations, "free", at_once)


def a_draw_after_the_end_delivered(patch: Patch) -> None:
    take = DecodeBatch.take

    def all_but_who_left(self, members, token_ids, now_s):
        return {place: group for place, group in take(self, members, token_ids, now_s).items() if group in self}

    patch.setattr(DecodeBatch, "take", all_but_who_left)


def a_pending_id_taken_from_before(patch: Patch) -> None:
    execute = ToyExecutor.execute

    def behind(self, plan):
        before = self._last_drawn.copy()
        result = execute(self, plan)
        self._last_drawn.update(before)
        return result

    patch.setattr(ToyExecutor, "execute", behind)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        a_block_freed_early,
        a_count_off_by_one,
        a_table_shared_wrongly,
        a_salt_ignored,
        a_copy_skipped,
        a_change_of_table_not_told,
        an_evicted_block_still_known,
        a_token_too_many_believed_computed,
        blocks_kept_after_the_end,
        rows_mixed_up,
    ],
)
def test_a_fault_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap)


@pytest.mark.parametrize(
    "fault",
    [
        blocks_freed_while_an_iteration_touches_them,
        a_draw_after_the_end_delivered,
        a_pending_id_taken_from_before,
    ],
)
def test_a_fault_of_overlapping_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap=True)


def beam_scenario(overlap: bool) -> None:
    """Beams beside choices with the same beginning, preempted in a small cache, checked against the oracle."""
    harness = Harness(num_blocks=20, block_size=2, max_num_seqs=10, max_num_batched_tokens=12, overlap=overlap)
    harness.add(harness.request((1, 2, 3), 12, n=2, seed=2))
    harness.add(harness.request((1, 2, 3, 4, 5), 16, seed=1))
    harness.add(harness.beam_request((1, 2, 3, 4, 5), 8, width=3, n=3))
    harness.add(harness.beam_request((1, 2, 3), 8, width=4, n=4, stops=frozenset({0, 9, 18})))
    harness.run(max_steps=500)
    beams = [stats for stats, _, _ in harness.sink.requests if stats.n in (3, 4)]
    assert all(stats.num_preemptions > 0 for stats in beams)
    assert any(plan.copies for plan in harness.toy.plans)
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    assert harness.blocks.pool.num_used == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_of_beams_passes(overlap: bool):
    beam_scenario(overlap)


def a_beams_fork_leaks(patch: Patch) -> None:
    """The blocks that a beam had before it extended another beam are never freed."""
    refork = BlockManager.refork

    def keep_old(self: BlockManager, parent_of: dict[int, int]) -> None:
        for child_id, parent_id in parent_of.items():
            old, new = self.table(child_id).block_ids, self.table(parent_id).block_ids
            for block_id in set(old) - set(new):
                self.pool.share(block_id)
        refork(self, parent_of)

    patch.setattr(BlockManager, "refork", keep_old)


def a_beam_keeps_its_own_blocks(patch: Patch) -> None:
    patch.setattr(BlockManager, "refork", lambda self, parent_of: None)


def beams_go_on_in_turn_instead_of_at_once(patch: Patch) -> None:
    """So a beam may take blocks that its parent has taken from another beam in the same step."""
    refork = BlockManager.refork

    def in_turn(self: BlockManager, parent_of: dict[int, int]) -> None:
        for child_id, parent_id in parent_of.items():
            refork(self, {child_id: min(parent_id, child_id)})

    patch.setattr(BlockManager, "refork", in_turn)


def a_beams_change_of_table_not_told(patch: Patch) -> None:
    def silent(self: BlockTable, block_ids: list[int], start: int) -> None:
        self.block_ids[start:] = block_ids

    patch.setattr(BlockTable, "adopt", silent)


def a_preempted_beam_keeps_its_top(patch: Patch) -> None:
    """So the next step may be decided while some beams are still to be recomputed."""
    preempt = GroupPreemption.preempt

    def keep_tops(self, group, draft):
        tops = [sequence.top for sequence in group.live]
        preempt(self, group, draft)
        if group.is_forked and group.request.sampling.beam is not None:
            for sequence, top in zip(group.live, tops, strict=True):
                sequence.top = top or ((1, -0.1), (2, -0.2), (3, -0.3), (4, -0.4), (5, -0.5), (6, -0.6), (7, -0.7))

    patch.setattr(GroupPreemption, "preempt", keep_tops)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        a_beams_fork_leaks,
        a_beam_keeps_its_own_blocks,
        beams_go_on_in_turn_instead_of_at_once,
        a_beams_change_of_table_not_told,
        a_preempted_beam_keeps_its_top,
        a_copy_skipped,
    ],
)
def test_a_fault_of_beams_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        beam_scenario(overlap)


def slot_scenario() -> None:
    """Blocks of one token in a tiny cache: choices, beams and prompts with the same beginning, against the oracle."""
    harness = Harness(num_blocks=40, block_size=1, max_num_seqs=8, max_num_batched_tokens=16)
    harness.add(harness.request((1, 2, 3), 14, seed=1))
    harness.add(harness.request((1, 2, 3), 12, n=2, seed=2))
    harness.add(harness.beam_request((1, 2, 3, 4), 5, width=3, n=3))
    harness.add(harness.request((1, 2), 14, seed=3))
    harness.run(max_steps=200)
    harness.add(harness.request((1, 2, 3, 4, 5), 8, seed=4))
    harness.run(max_steps=200)
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > 0
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    assert harness.blocks.pool.num_used == 0


def test_without_a_fault_the_scenario_of_slots_passes():
    slot_scenario()


def a_slot_given_to_two(patch: Patch) -> None:
    append_each = BlockSupply.append_each

    def twice(self: BlockSupply, tables: list[BlockTable]) -> list[int]:
        slots = append_each(self, tables)
        if len(tables) > 1:
            slots[1] = tables[1].block_ids[-1] = slots[0]
        return slots

    patch.setattr(BlockSupply, "append_each", twice)


def a_new_slot_not_told(patch: Patch) -> None:
    append_each = BlockSupply.append_each

    def late(self: BlockSupply, tables: list[BlockTable]) -> list[int]:
        return [0] * len(append_each(self, tables))

    patch.setattr(BlockSupply, "append_each", late)


def a_taken_slot_still_known(patch: Patch) -> None:
    patch.setattr(KnownBlocks, "forget", lambda self, block_ids: None)


def a_slot_counted_for_one_less(patch: Patch) -> None:
    allocate_many = BlockPool.allocate_many

    def uncounted(self: BlockPool, count: int) -> list[int]:
        block_ids = allocate_many(self, count)
        if count > 1:
            self._reference_counts[block_ids[-1]] = 0
        return block_ids

    patch.setattr(BlockPool, "allocate_many", uncounted)


@pytest.mark.parametrize(
    "fault", [a_slot_given_to_two, a_new_slot_not_told, a_taken_slot_still_known, a_slot_counted_for_one_less]
)
def test_a_fault_of_slots_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        slot_scenario()


def swap_scenario(overlap: bool) -> None:
    """Choices and requests are swapped out and in while others run; copies take two iterations."""
    harness = Harness(
        num_blocks=12,
        block_size=2,
        max_num_batched_tokens=24,
        preemption=AlwaysSwap(),
        num_host_blocks=12,
        transfer_delay=2,
        overlap=overlap,
    )
    harness.add(harness.request((5, 3, 4), 14, seed=0))
    harness.add(harness.request((3, 3), 5, n=2, seed=1))
    harness.add(harness.request((5, 1), 10, seed=2))
    harness.add(harness.request((5,), 6, seed=3))
    harness.run(max_steps=300)
    preempted = [kept.recovery for stats, _, _ in harness.sink.requests for kept in stats.preemptions]
    assert preempted.count("swap") > 1
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    assert harness.blocks.pool.num_used == harness.blocks.swap_space.num_used == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_of_swaps_passes(overlap: bool):
    swap_scenario(overlap)


def blocks_freed_before_their_copy_ends(patch: Patch) -> None:
    swap_out = SwapSpace.swap_out

    def free_at_once(self: SwapSpace, tables: dict[int, list[int]]) -> Transfer:
        transfer = swap_out(self, tables)
        flight = self._in_flight[transfer.transfer_id]
        freed, flight.device_blocks = flight.device_blocks, []
        for block_id in freed:
            self._device.release(block_id)
        return transfer

    patch.setattr(SwapSpace, "swap_out", free_at_once)


def a_block_left_behind(patch: Patch) -> None:
    swap_out = SwapSpace.swap_out

    def but_one(self: SwapSpace, tables: dict[int, list[int]]) -> Transfer:
        transfer = swap_out(self, tables)
        return transfer._replace(device_blocks=transfer.device_blocks[:-1], host_blocks=transfer.host_blocks[:-1])

    patch.setattr(SwapSpace, "swap_out", but_one)


def host_blocks_of_two_mixed_up(patch: Patch) -> None:
    swap_in = SwapSpace.swap_in

    def reversed_in(self: SwapSpace, sequence_ids: list[int], device_of: dict[int, int]) -> Transfer:
        transfer = swap_in(self, sequence_ids, device_of)
        return transfer._replace(host_blocks=transfer.host_blocks[::-1])

    patch.setattr(SwapSpace, "swap_in", reversed_in)


def who_is_on_the_way_runs(patch: Patch) -> None:
    patch.setattr(BlockGrowth, "is_swapping", lambda self, group: False)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        blocks_freed_before_their_copy_ends,
        a_block_left_behind,
        host_blocks_of_two_mixed_up,
        who_is_on_the_way_runs,
    ],
)
def test_a_fault_of_swaps_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        swap_scenario(overlap)
