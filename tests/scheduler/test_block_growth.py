from __future__ import annotations

import random

import pytest

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.history import History
from service.scheduler.lanes import Lanes
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.preemption import AlwaysSwap
from service.scheduler.speculation import Speculation
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_drafts import ToyDrafts
from tests.examples import examples
from tests.scheduler.test_decode_batch import make_batch
from tests.scheduler.test_preemption import run_under_pressure


def lanes_of(batch: DecodeBatch) -> Lanes:
    """One lane, with this batch."""
    lanes = Lanes(batch._blocks, 1, History())
    lanes.batch = batch
    return lanes


def test_blocks_that_are_short_are_counted_batched_and_unbatched():
    batch, groups = make_batch(3, 4, 4)
    growth = BlockGrowth(batch._blocks, lanes_of(batch))
    assert growth.shortage().num_blocks == 2
    batch.dissolve(groups)
    shortage = growth.shortage()
    assert shortage.num_blocks == 2
    assert [(group.arrival_order, count) for group, count in shortage.unbatched] == [(1, 1), (2, 1)]


def tight() -> tuple[BlockGrowth, BlockManager, list[SequenceGroup]]:
    """Two groups whose blocks are full, and one free block."""
    batch, groups = make_batch(4, 4)
    blocks = batch._blocks
    blocks.allocate(99, (blocks.pool.num_free - 1) * blocks.block_size, [])
    batch.dissolve(groups)
    return BlockGrowth(blocks, lanes_of(batch)), blocks, groups


def test_blocks_go_to_who_started_first_and_the_others_sit_out():
    growth, blocks, groups = tight()
    shortage = growth.shortage()
    assert not growth.has_room(shortage)
    assert not growth.will_have_room(shortage)
    draft = PlanDraft(1, 0.0, DecisionTally(), blocks.adapter_slots)
    growth.grow(shortage, draft)
    assert draft.sitting_out == {groups[1].arrival_order}
    assert len(blocks.table(0).block_ids) == 2


def test_blocks_on_their_way_out_will_be_room():
    harness = run_under_pressure(AlwaysSwap(), transfer_delay=3)
    sat_out = [plan for plan in harness.toy.plans if plan.transfers and plan.scheduled]
    assert sat_out, "others compute while blocks leave"


def test_nobody_is_short_where_nobody_runs():
    blocks = BlockManager(4, 2, NoPrefixCache())
    assert BlockGrowth(blocks, Lanes(blocks, 1, History())).shortage().num_blocks == 0


def test_a_chunk_takes_what_it_wants_or_what_there_is():
    blocks = BlockManager(6, 4, NoPrefixCache())
    group = SequenceGroup(Request("r", (1,) * 40, SamplingParams(3), 0.0), 0)
    blocks.allocate(0, 4, [])
    group.leader.num_computed_tokens = 4
    growth = BlockGrowth(blocks, Lanes(blocks, 1, History()))
    assert growth.room_for_chunk(group, group.leader, 9) == 12
    assert growth.room_for_chunk(group, group.leader, 10) == 12
    assert growth.room_for_chunk(group, group.leader, 40) == 24
    assert blocks.pool.num_free == 0
    assert growth.room_for_chunk(group, group.leader, 40) == 24


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("block_size", "window", "budget", "num_drafts"),
    [(16, 2, 6, 0), (16, 40, 8, 0), (16, 2, 6, 4), (16, 40, 8, 4), (8, 3, 4, 2)],
)
def test_under_a_window_who_fits_alone_is_never_preempted(
    block_size: int, window: int, budget: int, num_drafts: int, overlap: bool
):
    """The cache has exactly the blocks that a windowed sequence holds at most (`most_held`, which the harness checks).
    So it frees what it no longer sees before it takes a block: in the decode batch, outside it, and with drafts."""
    num_blocks = AttentionWindow(window, (1 + overlap) * budget).most_units(block_size)
    for seed in range(examples(3)):
        chance, share_right = random.Random(seed), [0.05, 0.2, 0.4][seed % 3]

        def drafter(chance: random.Random = chance, share_right: float = share_right) -> ToyDrafts:
            return ToyDrafts(chance, share_right, VOCABULARY, window=window)

        speculation = Speculation(num_drafts, budget - 1, drafter) if num_drafts else None
        harness = Harness(num_blocks, block_size, 4, budget, overlap=overlap, window=window, speculation=speculation)
        assert harness.add(harness.request((0, 1, 2, 3, 4), 100, seed=seed))
        for _ in range(2000):
            if not harness.engine.has_work:
                break
            harness.step()
            if not (num_drafts or harness.engine._launched) and chance.random() < 0.1:
                harness.scheduler.lanes.dissolve(harness.scheduler.pool.running)
        harness.check_against_oracle("request-0")
        harness.check_nothing_left()
        assert harness.sink.requests[0][0].num_preemptions == 0
