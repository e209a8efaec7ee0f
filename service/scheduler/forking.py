"""Forks: choices of one prompt, and beams from each other, share blocks that are copied on write (PagedAttention,
section 4.4)."""

from __future__ import annotations

from service.core.sequence import Sequence
from service.core.sequence_group import GroupStatus, SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.memory_need import num_shared_tokens


def fork_choices(group: SequenceGroup, blocks: BlockManager) -> None:
    """The prompt is computed: fork the other choices from the leader. They share all of its blocks."""
    leader = group.leader
    for sequence in group.live[1:]:
        blocks.fork(leader.sequence_id, sequence.sequence_id, leader.num_computed_tokens)
        sequence.num_computed_tokens = leader.num_computed_tokens
        sequence.num_cached_blocks = leader.num_cached_blocks
        sequence.block_digests = leader.block_digests.copy()
        sequence.token_ids = leader.token_ids.copy()
    group.is_forked = True


def share_prompt(group: SequenceGroup, blocks: BlockManager) -> None:
    """After a preemption, only the leader recomputes what the choices share; the others have no table meanwhile. Once
    the launched iterations cover the shared part, give them tables."""
    others, shared = group.computing[1:], num_shared_tokens(group.request, blocks.block_size)
    if not others or group.leader.num_computed_tokens < shared:
        return
    for sequence in others:
        if not blocks.has_table(sequence.sequence_id):
            blocks.fork(group.leader.sequence_id, sequence.sequence_id, shared)
            blocks.forget_unseen(sequence.sequence_id, shared)  # the leader may still hold blocks from far before
            sequence.num_computed_tokens = shared
            sequence.num_cached_blocks = shared // blocks.block_size


def hand_over_lead(group: SequenceGroup, blocks: BlockManager) -> None:
    """The leader ends before its siblings. If the shared prefix is still being computed, the next live sequence takes
    over its blocks and continues."""
    old, new = group.live[:2]
    assert group.is_forked or group.status is GroupStatus.WAITING
    if blocks.has_table(old.sequence_id) and not blocks.has_table(new.sequence_id):
        blocks.fork(old.sequence_id, new.sequence_id, old.num_computed_tokens)
        new.num_computed_tokens = old.num_computed_tokens
        new.num_cached_blocks = old.num_cached_blocks


def continue_beams(beams: list[Sequence], parents: list[int], token_ids: list[int], blocks: BlockManager) -> None:
    """Beam i becomes a fork of what beam parents[i] was before the call, plus token_ids[i]. All have equal length."""
    pairs = list(zip(beams, [beams[parent] for parent in parents], strict=True))
    blocks.refork({beam.sequence_id: parent.sequence_id for beam, parent in pairs if beam is not parent})
    grown = [[*parent.token_ids, token_id] for (_, parent), token_id in zip(pairs, token_ids, strict=True)]
    notes = [
        (parent.block_digests.copy(), parent.num_cached_blocks, parent.num_computed_tokens, parent.recompute_until)
        for _, parent in pairs
    ]
    for beam, ids, (digests, num_cached, num_computed, recompute_until) in zip(beams, grown, notes, strict=True):
        beam.token_ids = ids
        beam.block_digests = digests
        beam.num_cached_blocks = num_cached
        beam.num_computed_tokens = num_computed
        beam.recompute_until = recompute_until
