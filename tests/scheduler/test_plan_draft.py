from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past
from service.core.sequence_group import SequenceGroup
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_pool import BlockPool
from service.kvcache.block_table import BlockTable
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.plan_draft import PlanDraft

PROMPT = (5, 6, 7, 8, 9)


def make(params: SamplingParams) -> tuple[PlanDraft, SequenceGroup]:
    return PlanDraft(1, 0.0, DecisionTally(), AdapterSlots(0, BlockPool(1))), SequenceGroup(
        Request("a", PROMPT, params, 0.0), 3
    )


def test_who_computes_all_of_its_tokens_draws():
    draft, group = make(SamplingParams(4, seed=2))
    table = BlockTable(1, [10, 11])
    draft.budget = 3
    draft.add_chunk(group, group.leader, table)
    group.leader.num_computed_tokens = 3
    draft.budget = 8
    draft.add_chunk(group, group.leader, table)
    first, last = draft.scheduled
    assert (first.token_ids, first.block_ids, first.samples) == (PROMPT[:3], (10, 11), ())
    assert (last.token_ids, last.num_computed_tokens, last.block_ids) == (PROMPT[3:], 3, ())
    assert [draw.sequence_id for draw in last.samples] == [3]
    assert draft.budget == 6
    assert [chunk.num_tokens for chunk in group.journal.chunks] == [3, 2]


def test_a_prompt_draws_for_all_choices_and_a_scored_one_not_at_all():
    draft, group = make(SamplingParams(4, n=3))
    draft.add(group, group.leader, 5, BlockTable(1, [1]))
    assert [draw.sequence_id for draw in draft.scheduled[0].samples] == [3, 4, 5]
    draft, group = make(SamplingParams(0, num_prompt_logprobs=1))
    draft.add(group, group.leader, 3, BlockTable(1, [1]))
    assert draft.scheduled[0].samples == ()
    assert draft.scheduled[0].targets == (6, 7, 8)


def test_who_looks_back_brings_its_past():
    draft, group = make(SamplingParams(4, presence_penalty=0.5))
    group.leader.num_computed_tokens = 2
    table = BlockTable(1, [1])
    for _ in range(2):
        draft.add(group, group.leader, 5, table)
    assert [item.past for item in draft.scheduled] == [Past((5, 6), 5), None], "once"
