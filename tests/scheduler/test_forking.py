from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.forking import continue_beams, fork_choices, hand_over_lead, share_prompt
from tests.kvcache.block_invariants import check_blocks

PROMPT = (1, 2, 3, 4, 5)


def make_beams(blocks: BlockManager) -> SequenceGroup:
    """Three beams of eight tokens, six of them computed; their block tables differ from the second block on."""
    sampling = SamplingParams(10, num_logprobs=3, beam=BeamParams(3))
    group = SequenceGroup(Request("a", PROMPT, sampling, 0.0), 0)
    blocks.allocate(0, 5, [])
    for beam in group.live[1:]:
        blocks.fork(0, beam.sequence_id, 4)
    for index, beam in enumerate(group.live):
        beam.token_ids = [*PROMPT, 10 + index, 20 + index, 30 + index]
        beam.num_computed_tokens = 8
        blocks.append(beam.sequence_id, 8, 5 if index == 0 else 4)
        blocks.table(beam.sequence_id).take_changes()
    return group


def test_each_beam_becomes_its_parent_and_one_token_more():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_beams(blocks)
    tables = [list(blocks.table(i).block_ids) for i in range(3)]
    continue_beams(group.live, [1, 0, 1], [7, 8, 9], blocks)
    assert [beam.token_ids[5:] for beam in group.live] == [[11, 21, 31, 7], [10, 20, 30, 8], [11, 21, 31, 9]]
    assert [blocks.table(i).block_ids for i in range(3)] == [tables[1], tables[0], tables[1]]
    check_blocks(blocks)
    assert blocks.pool.reference_count(tables[2][1]) == 0, "nobody goes on from the third"


def test_the_executor_is_told_of_the_entries_that_changed():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_beams(blocks)
    continue_beams(group.live, [0, 0, 2], [7, 8, 9], blocks)
    assert [blocks.table(i).take_changes()[0] for i in range(3)] == [2, 1, 2]
    assert [len(beam.token_ids) for beam in group.live] == [9, 9, 9]


def test_what_is_written_next_is_copied_first():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_beams(blocks)
    for beam in group.live:
        beam.num_computed_tokens = 7
        beam.token_ids.pop()
    continue_beams(group.live, [0, 0, 0], [7, 8, 9], blocks)
    copies = [copy for beam in group.live for copy in blocks.append(beam.sequence_id, 8, 7)]
    assert len(copies) == 2, "the last holder writes in place"
    check_blocks(blocks)


def test_notes_of_the_prefix_cache_go_with_the_tokens():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_beams(blocks)
    for index, beam in enumerate(group.live):
        beam.block_digests, beam.num_cached_blocks = [b"prompt", bytes([index])], 2 - index
    continue_beams(group.live, [1, 0, 1], [7, 8, 9], blocks)
    assert [beam.block_digests[1] for beam in group.live] == [b"\1", b"\0", b"\1"]
    assert [beam.num_cached_blocks for beam in group.live] == [1, 2, 1]
    group.live[0].block_digests.append(b"x")
    assert len(group.live[2].block_digests) == 2


def make_choices(blocks: BlockManager) -> SequenceGroup:
    """Three choices of a prompt that is computed."""
    group = SequenceGroup(Request("a", PROMPT, SamplingParams(10, n=3), 0.0), 0)
    blocks.allocate(0, 5, [])
    group.leader.num_computed_tokens = 5
    return group


def test_choices_share_all_blocks_of_the_prompt():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_choices(blocks)
    fork_choices(group, blocks)
    assert [blocks.table(i).block_ids for i in range(3)] == [blocks.table(0).block_ids] * 3
    assert [s.num_computed_tokens for s in group.live] == [5, 5, 5]
    check_blocks(blocks)


def test_a_prompt_is_held_once_until_its_choices_fork():
    """A waiting request with many choices needs no more host memory than one with a single choice."""
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = make_choices(blocks)
    assert all(sequence.token_ids is group.leader.token_ids for sequence in group.live)
    fork_choices(group, blocks)
    for sequence in group.live:
        sequence.token_ids.append(sequence.sequence_id)
    assert [sequence.token_ids for sequence in group.live] == [[*PROMPT, 0], [*PROMPT, 1], [*PROMPT, 2]]


def preempted_choices(blocks: BlockManager, num_computed: int) -> SequenceGroup:
    """Three choices that were dropped; the leader has recomputed `num_computed` tokens of the prompt."""
    group = make_choices(blocks)
    fork_choices(group, blocks)
    for sequence in group.live:
        sequence.token_ids.append(sequence.sequence_id)
        sequence.num_computed_tokens = 0
        blocks.free(sequence.sequence_id)
    blocks.allocate(0, num_computed, [])
    group.leader.num_computed_tokens = num_computed
    return group


def test_after_a_preemption_the_choices_share_the_prompts_full_blocks_once_they_are_computed():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = preempted_choices(blocks, 3)
    share_prompt(group, blocks)
    assert [blocks.has_table(i) for i in range(3)] == [True, False, False]
    blocks.append(0, 6, 4)
    group.leader.num_computed_tokens = 6
    share_prompt(group, blocks)
    assert [blocks.table(i).block_ids for i in (1, 2)] == [blocks.table(0).block_ids[:1]] * 2
    assert [s.num_computed_tokens for s in group.live] == [6, 4, 4]
    check_blocks(blocks)


def test_the_next_leader_goes_on_where_the_old_one_stopped():
    blocks = BlockManager(16, 4, NoPrefixCache())
    group = preempted_choices(blocks, 2)
    hand_over_lead(group, blocks)
    old = group.live.pop(0)
    assert blocks.table(1).block_ids == blocks.table(old.sequence_id).block_ids
    blocks.free(old.sequence_id)
    assert group.leader.num_computed_tokens == 2
    assert not blocks.has_table(2), "it waits on"
    check_blocks(blocks)
