from __future__ import annotations

from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.group_preemption import GroupPreemption
from service.scheduler.lanes import LaunchedIterations
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.preemption import AlwaysSwap
from tests.scheduler.test_request_pool import make_group


def make_preemption(blocks: BlockManager, launched: LaunchedIterations) -> GroupPreemption:
    ledger = RecoveryLedger(PreemptionCost(IterationTime(), SwapTime(), 64))
    return GroupPreemption(blocks, FirstComeFirstServed(), AlwaysSwap(), ledger, launched, max_preemptions=2)


def preempt(num_host_blocks: int) -> tuple[SequenceGroup, PlanDraft, BlockManager]:
    """A group of two choices that share one block and have one of their own each."""
    blocks = BlockManager(8, 2, NoPrefixCache(), num_host_blocks)
    preemption = make_preemption(blocks, LaunchedIterations(blocks))
    group = make_group("a", n=2)
    group.is_forked = True
    blocks.allocate(0, 4, [])
    blocks.fork(0, 1, 2)
    blocks.append(1, 4, 2)
    for sequence in group.live:
        sequence.num_computed_tokens = 4
    draft = PlanDraft(1, 3.0, DecisionTally(), blocks.adapter_slots)
    preemption.preempt(group, draft)
    return group, draft, blocks


def test_a_group_is_moved_whole_and_a_shared_block_once():
    group, draft, blocks = preempt(num_host_blocks=3)
    assert [len(transfer.device_blocks) for transfer in draft.transfers] == [3]
    assert (draft.tally.num_swapped, draft.tally.swapped_blocks, draft.tally.num_dropped) == (1, 3, 0)
    assert sorted(blocks.take_released_rows()) == [1, 2]
    assert [s.num_computed_tokens for s in group.live] == [4, 4], "they are still there"
    assert blocks.pool.num_used == 3, "until the copy has finished"


def test_without_room_on_the_host_it_is_dropped():
    group, draft, blocks = preempt(num_host_blocks=2)
    assert draft.transfers == []
    assert (draft.tally.num_swapped, draft.tally.num_dropped) == (0, 1)
    assert [(s.num_computed_tokens, s.recompute_until) for s in group.live] == [(0, 4), (0, 4)]
    assert blocks.pool.num_used == 0
    assert sorted(blocks.take_released_rows()) == [1, 2]
    assert group.num_preemptions == 1


def test_who_is_preempted_before_all_is_recomputed_computes_the_rest_again_too():
    group, _, blocks = preempt(num_host_blocks=0)
    preemption = make_preemption(blocks, LaunchedIterations(blocks))
    for sequence in group.live:
        blocks.allocate(sequence.sequence_id, 4, [])
        sequence.num_computed_tokens = 3
        sequence.top = ((7, -0.5),)
    preemption.preempt(group, PlanDraft(2, 4.0, DecisionTally(), blocks.adapter_slots))
    assert [(s.num_computed_tokens, s.recompute_until) for s in group.live] == [(0, 4), (0, 4)]
    assert [s.top for s in group.live] == [None, None], "a beam's next tokens come again when all are computed"
