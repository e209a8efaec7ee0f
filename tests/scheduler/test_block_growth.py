from __future__ import annotations

from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.lockstep import Lockstep
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.preemption import AlwaysSwap
from tests.scheduler.test_lockstep import make_lockstep
from tests.scheduler.test_preemption import run_under_pressure


def test_what_is_lacking_is_counted_in_lockstep_and_apart():
    lockstep, groups = make_lockstep(3, 4, 4)
    growth = BlockGrowth(lockstep._blocks, lockstep)
    assert growth.lacking().num_blocks == 2
    lockstep.dissolve(groups)
    lacking = growth.lacking()
    assert lacking.num_blocks == 2
    assert [(group.arrival_order, count) for group, count in lacking.apart] == [(1, 1), (2, 1)]


def tight() -> tuple[BlockGrowth, BlockManager, list[SequenceGroup]]:
    """Two groups whose blocks are full, one free block."""
    lockstep, groups = make_lockstep(4, 4)
    blocks = lockstep._blocks
    blocks.allocate(99, (blocks.pool.num_free - 1) * blocks.block_size, [])
    lockstep.dissolve(groups)
    return BlockGrowth(blocks, lockstep), blocks, groups


def test_blocks_go_to_who_started_first_and_the_others_sit_out():
    growth, blocks, groups = tight()
    lacking = growth.lacking()
    assert not growth.has_room(lacking)
    assert not growth.will_have_room(lacking)
    draft = PlanDraft(1, 0.0, DecisionTally())
    growth.grow(lacking, draft)
    assert draft.sitting_out == {groups[1].arrival_order}
    assert len(blocks.table(0).block_ids) == 2


def test_blocks_on_their_way_out_will_be_room():
    harness = run_under_pressure(AlwaysSwap(), transfer_delay=3)
    sat_out = [plan for plan in harness.toy.plans if plan.transfers and plan.scheduled]
    assert sat_out, "others compute while blocks leave"


def test_nobody_lacks_anything_where_nobody_runs():
    blocks = BlockManager(4, 2, NoPrefixCache())
    assert BlockGrowth(blocks, Lockstep(blocks)).lacking().num_blocks == 0
