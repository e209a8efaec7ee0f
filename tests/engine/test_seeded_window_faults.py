"""Faults put on purpose into sequences that free blocks behind a sliding window: each is caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from service.core.layer_groups import ALL_SEE_A_WINDOW, TableGroups
from service.core.sequence_group import SequenceGroup
from service.kvcache import prefix_cache
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_pool import BlockSupply
from service.kvcache.block_table import HOLE, BlockTable
from service.kvcache.prefix_cache import ChainedPrefixCache
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.group_start import GroupStart
from service.scheduler.plan_draft import PlanDraft
from tests.engine.harness import Harness
from tests.engine.test_engine import SometimesSwap

Patch = pytest.MonkeyPatch


def scenario(overlap: bool, groups: TableGroups = ALL_SEE_A_WINDOW) -> None:
    """Answers of several windows, choices, beams and prompts with the same beginning, in caches of a few windows."""
    recoveries = Counter[str]()
    for num_blocks in (40, 43, 44):
        harness = Harness(
            num_blocks * groups.num_windowed + 45 * groups.num_full,
            block_size=2,
            max_num_seqs=7,
            max_num_batched_tokens=8,
            preemption=SometimesSwap(0.3),
            num_host_blocks=40 * groups.size,
            transfer_delay=1,
            overlap=overlap,
            window=17,
            groups=groups,
        )
        prompt = tuple(i % 7 for i in range(30))
        for number in range(5):
            assert harness.add(harness.request((number, *prompt), 25, seed=number))
            assert harness.add(harness.request(prompt[: 20 + 2 * number], 18, n=1 + number % 3, seed=number))
            harness.step()
        assert harness.add(harness.beam_request(prompt, 12, width=3, n=3))
        harness.run(max_steps=600)
        assert harness.add(harness.request((*prompt, 7), 3))
        harness.run(max_steps=50)
        for stats, _, _ in harness.sink.requests:
            recoveries.update(preemption.recovery for preemption in stats.preemptions)
        assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > 0
        for request_id, request in harness.requests.items():
            for choice in range(request.sampling.n):
                harness.check_against_oracle(request_id, choice)
        harness.check_nothing_left()
    assert recoveries["swap"] > 0 < recoveries["recompute"]


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_passes(overlap: bool):
    scenario(overlap)


def blocks_given_back_one_too_early(patch: Patch) -> None:
    first_unit = AttentionWindow.first_unit
    patch.setattr(AttentionWindow, "first_unit", lambda self, *arguments: first_unit(self, *arguments) + 1)


def blocks_given_back_that_the_chunk_itself_sees(patch: Patch) -> None:
    def too_soon(self: BlockTable) -> tuple[int, tuple[int, ...]]:
        changes = take_changes(self)
        self.drop_before(len(self.block_ids) - 3)
        return changes

    take_changes = BlockTable.take_changes
    patch.setattr(BlockTable, "take_changes", too_soon)


def blocks_never_given_back(patch: Patch) -> None:
    patch.setattr(BlockManager, "forget_unseen", lambda self, sequence_id, position: None)


def blocks_dropped_but_not_given_back(patch: Patch) -> None:
    def only_dropped(self: BlockManager, sequence_id: int, position: int) -> None:
        assert self.window is not None
        self.table(sequence_id).drop_before(self.window.first_unit(position, self.block_size))

    patch.setattr(BlockManager, "forget_unseen", only_dropped)


def holes_forgotten_on_the_host(patch: Patch) -> None:
    swap_in = BlockManager.swap_in

    def without(self, sequence_ids):
        self._holes_of_swapped.clear()
        return swap_in(self, sequence_ids)

    patch.setattr(BlockManager, "swap_in", without)


def a_hole_told_as_a_block(patch: Patch) -> None:
    def as_it_is(self: BlockTable) -> tuple[int, tuple[int, ...]]:
        start, self.changed_from = self.changed_from, len(self.block_ids)
        return start, tuple(self.block_ids[start:])

    patch.setattr(BlockTable, "take_changes", as_it_is)


def a_prefix_of_which_too_little_is_known(patch: Patch) -> None:
    match, table = ChainedPrefixCache._last_seen, ChainedPrefixCache._table
    patch.setattr(ChainedPrefixCache, "_last_seen", lambda self, *arguments: match(self, *arguments[:-1], 2))
    patch.setattr(ChainedPrefixCache, "_table", lambda self, full, seen, _: table(self, full, seen, 2))


def a_prefix_offered_with_its_holes(patch: Patch) -> None:
    patch.setattr(prefix_cache, "HOLE", -2)


def a_fork_that_knows_of_no_holes(patch: Patch) -> None:
    fork = BlockManager.fork

    def as_if_held(self, parent_id, child_id, num_tokens):
        fork(self, parent_id, child_id, num_tokens)
        self.table(child_id).first = 0

    patch.setattr(BlockManager, "fork", as_if_held)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        blocks_given_back_one_too_early,
        blocks_given_back_that_the_chunk_itself_sees,
        blocks_never_given_back,
        blocks_dropped_but_not_given_back,
        holes_forgotten_on_the_host,
        a_hole_told_as_a_block,
        a_prefix_of_which_too_little_is_known,
        a_prefix_offered_with_its_holes,
        a_fork_that_knows_of_no_holes,
    ],
)
def test_a_fault_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap)


PARTED = TableGroups(1, 2)


def test_without_a_fault_the_scenario_passes_for_groups_of_layers():
    scenario(overlap=False, groups=PARTED)


def a_group_given_back_that_sees_everything(patch: Patch) -> None:
    def of_all_groups(self: BlockManager, sequence_id: int, position: int) -> None:
        forget_unseen(self, sequence_id, position)
        table = self.table(sequence_id)
        if table.first and table.block_ids[0] != HOLE:
            self.pool.release(table.block_ids[0])
            table.block_ids[0] = HOLE

    forget_unseen = BlockManager.forget_unseen
    patch.setattr(BlockManager, "forget_unseen", of_all_groups)


def groups_whose_entries_change_places(patch: Patch) -> None:
    def swapped(self: BlockSupply, tables: list[BlockTable]) -> list[int]:
        block_ids = append_each(self, tables)
        return [*block_ids[1:], *block_ids[:1]]

    append_each = BlockSupply.append_each
    patch.setattr(BlockSupply, "append_each", swapped)


@pytest.mark.parametrize(
    "fault",
    [
        blocks_given_back_one_too_early,
        blocks_never_given_back,
        holes_forgotten_on_the_host,
        a_prefix_of_which_too_little_is_known,
        a_group_given_back_that_sees_everything,
        groups_whose_entries_change_places,
    ],
)
def test_a_fault_of_groups_of_layers_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap=False, groups=PARTED)


def choices_scenario() -> None:
    """Choices far past their prompt are preempted, and the prefix cache has what the leader computed last."""
    harness = Harness(40, block_size=2, window=5)
    harness.add(harness.request((1, 2, 3, 4, 5, 6, 7, 8), 30, n=2))
    for _ in range(20):
        harness.step()
    scheduler, [group] = harness.scheduler, harness.scheduler.pool.running
    scheduler.lanes.stop(group)
    draft = PlanDraft(1, 0.0, DecisionTally(), harness.blocks.adapter_slots)
    scheduler._whole_lane._preemption.preempt(group, draft)
    scheduler.pool.pause(group)
    harness.run(max_steps=300)
    for choice in range(2):
        harness.check_against_oracle("request-0", choice)


def test_without_a_fault_the_scenario_of_choices_passes():
    choices_scenario()


def choices_that_share_what_only_the_leader_may_skip(patch: Patch) -> None:
    patch.setattr(
        GroupStart,
        "_cached_prefix",
        lambda self, group: self._blocks.match_prefix(group.leader, group.request.prefix_salt),
    )


def test_choices_that_share_what_only_the_leader_may_skip_are_caught(monkeypatch: Patch):
    choices_that_share_what_only_the_leader_may_skip(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        choices_scenario()


def last_token_scenario() -> None:
    """One request draws its last token while another's prompt takes every free block."""
    harness = Harness(15, block_size=1, max_num_batched_tokens=8, window=5)
    assert harness.add(harness.request((0,), 6))
    harness.step()
    assert harness.add(harness.request((1,) * 38, 17))
    harness.run(max_steps=100)
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_without_a_fault_the_scenario_of_a_last_token_passes():
    last_token_scenario()


def blocks_given_back_with_the_last_token(patch: Patch) -> None:
    """By a decode that leaves the batch when its last token is decided. The iteration drawing it still reads them."""

    def too_soon(self: DecodeBatch, group: SequenceGroup, columns: list[int]) -> None:
        bring_up_to_date(self, group, columns)
        self._blocks.forget_unseen(group.live[0].sequence_id, group.live[0].num_computed_tokens)

    bring_up_to_date = DecodeBatch._bring_up_to_date
    patch.setattr(DecodeBatch, "_bring_up_to_date", too_soon)


def test_blocks_given_back_with_the_last_token_are_caught(monkeypatch: Patch):
    blocks_given_back_with_the_last_token(monkeypatch)
    with pytest.raises(AssertionError):
        last_token_scenario()
