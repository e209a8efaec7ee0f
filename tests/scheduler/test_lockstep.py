from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.iteration_plan import SharesGoingOn
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.lockstep import Lockstep
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.preemption import AlwaysSwap
from tests.engine.harness import Harness

BLOCK_SIZE = 4


def make_lockstep(*prompt_lens: int, max_tokens: int = 20) -> tuple[Lockstep, list[SequenceGroup]]:
    """Groups whose prompts are computed and whose first tokens are drawn."""
    blocks = BlockManager(32, BLOCK_SIZE, NoPrefixCache())
    lockstep, groups = Lockstep(blocks), []
    for number, length in enumerate(prompt_lens):
        group = SequenceGroup(Request(f"r{number}", (1,) * length, SamplingParams(max_tokens), 0.0), number)
        blocks.allocate(number, length, [])
        group.leader.token_ids.append(7)
        group.leader.num_computed_tokens = length
        lockstep.start(group)
        lockstep.join(group, group.leader)
        groups.append(group)
    return lockstep, groups


def advance(lockstep: Lockstep) -> PlanDraft:
    draft = PlanDraft(1, 0.0, DecisionTally())
    lockstep.lacking()
    lockstep.advance(draft)
    return draft


def test_a_block_is_asked_for_when_the_last_one_is_full():
    lockstep, groups = make_lockstep(3, 4)
    assert [decode.sequence_id for decode in lockstep.lacking()] == [1], "the first has room for its fourth token"
    draft = advance(lockstep)
    shares = draft.shares_in_lockstep
    assert [(item.num_computed_tokens, item.table_start, len(item.block_ids)) for item in shares] == [
        (3, 1, 0),
        (4, 1, 1),
    ]
    assert [decode.sequence_id for decode in lockstep.lacking()] == [0]
    lockstep.check_invariants(groups)


def test_whose_last_token_is_being_drawn_is_apart():
    lockstep, groups = make_lockstep(2, 2, max_tokens=3)
    advance(lockstep)
    advance(lockstep)
    assert lockstep.lacking() == []
    assert len(lockstep) == 0
    assert list(lockstep.apart.values()) == groups
    lockstep.check_invariants(groups)


def test_who_stops_is_scheduled_no_more():
    lockstep, groups = make_lockstep(2, 2)
    lockstep.stop(groups[0])
    assert [item.sequence_id for item in advance(lockstep).shares_in_lockstep] == [1]
    lockstep.stop(groups[1])
    assert len(lockstep) == 0
    assert not advance(lockstep).shares_in_lockstep


def play(seed: int, *, num_blocks: int, block_size: int, overlap: bool, swap: bool) -> tuple[object, int]:
    """Every plan of a random history, whatever the order in it; and how often lockstep had members. Without a prefix
    cache: which blocks are taken first, and so which prefixes are forgotten, hangs on that order."""
    chance = random.Random(seed)
    harness = Harness(
        num_blocks,
        block_size,
        max_num_seqs=6,
        max_num_batched_tokens=6 + chance.randint(1, 16),
        prefix_cache=NoPrefixCache(),
        preemption=AlwaysSwap() if swap else None,
        num_host_blocks=num_blocks if swap else 0,
        transfer_delay=chance.randint(0, 2),
        overlap=overlap,
    )
    num_together = 0
    for _ in range(60):
        if chance.random() < 0.25:
            prompt = tuple(range(chance.randint(1, 12)))
            harness.add(harness.request(prompt, chance.randint(1, 14), n=chance.choice((1, 1, 1, 2))))
        harness.step()
        num_together += len(harness.scheduler.lockstep)
    harness.run()
    plans = [
        (sorted((i.sequence_id, len(i.token_ids), i.num_computed_tokens) for i in plan.scheduled), len(plan.transfers))
        for plan in harness.toy.plans
    ]
    return (plans, harness.tokens), num_together


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(8, 40),
    block_size=st.sampled_from([1, 2, 4]),
    overlap=st.booleans(),
    swap=st.booleans(),
)
def test_in_lockstep_or_apart_the_decisions_are_the_same(
    seed: int, num_blocks: int, block_size: int, overlap: bool, swap: bool
):
    together, _ = play(seed, num_blocks=num_blocks, block_size=block_size, overlap=overlap, swap=swap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lockstep, "join", lambda self, group, sequence: None)
        apart, num_together = play(seed, num_blocks=num_blocks, block_size=block_size, overlap=overlap, swap=swap)
    assert num_together == 0
    assert together == apart


def test_a_plan_goes_on_while_the_same_decodes_are_alone():
    """What it says of the plan before is checked by whoever carries it out (tests/engine/toy_model.py)."""
    harness = Harness(num_blocks=64, block_size=4)
    for seed in range(3):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    for _ in range(4):
        harness.step()
    harness.add(harness.request((1, 2, 3), 4))
    for _ in range(20):
        harness.step()
    goes_on = [isinstance(plan.scheduled, SharesGoingOn) for plan in harness.toy.plans]
    with_one_prompt = [len(plan.scheduled) for plan in harness.toy.plans].index(4)
    # The first iteration of a decode has its prompt; the second is the first that only decodes.
    assert goes_on[:with_one_prompt] == [False, False, *[True] * (with_one_prompt - 2)]
    assert goes_on[with_one_prompt : with_one_prompt + 4] == [False, False, True, True]


def test_most_decodes_are_in_lockstep():
    harness = Harness(num_blocks=64)
    for seed in range(4):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    harness.add(harness.request((1, 2, 3), 12, n=2))
    harness.step()
    assert len(harness.scheduler.lockstep) == 4
    assert len(harness.scheduler.lockstep.apart) == 1
