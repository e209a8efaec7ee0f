"""How many blocks a request needs, now and at its longest. Its choices share the prompt's full blocks; requests that
run with the same adapter share the adapter's blocks."""

from __future__ import annotations

from service.core.request import Request
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_table import HOLE, num_left_behind


def num_shared_tokens(request: Request, block_size: int) -> int:
    """Prompt tokens in full blocks: what all choices can share without copying."""
    return request.num_prompt_tokens // block_size * block_size


def num_blocks_now(group: SequenceGroup, blocks: BlockManager, num_left_behind: int = 0) -> int:
    """Blocks for all tokens that the group has now, if none is allocated yet; with a sliding window, the most that it
    holds at once. num_left_behind: leading units that lie before the window already."""
    num_each = [blocks.num_units_for(sequence.num_tokens) for sequence in group.computing]
    return _held_by_choices(group.request, num_each, blocks, num_left_behind)


def num_blocks_to_start(group: SequenceGroup, prefix: list[int], blocks: BlockManager) -> int:
    """How many available blocks it takes to start the group: for its adapter, unless a running group uses it, and for
    its tokens, the first of which are in the cached blocks `prefix`.

    A swapped group needs the blocks that it had, and one more per choice, so that it is not preempted again at once.
    """
    of_adapter = blocks.adapter_slots.num_blocks_to_pin(group.request.adapter)
    if blocks.swap_space.holds(group.leader.sequence_id):
        num_held = blocks.swap_space.num_blocks_of([s.sequence_id for s in group.computing])
        return of_adapter + min(num_held + len(group.live), num_blocks_at_most(group.request, blocks))
    num_known = len(prefix) - prefix.count(HOLE)
    num_new = max(0, num_blocks_now(group, blocks, num_left_behind(prefix, blocks.groups)) - num_known)
    return of_adapter + num_new + blocks.num_free_among(prefix)


def num_blocks_to_come(group: SequenceGroup, blocks: BlockManager) -> int:
    """Blocks that a running group's present tokens still need: prompts take them chunk by chunk. 0 for decodes."""
    to_come = 0
    for sequence in group.computing:
        num_needed = blocks.num_units_for(sequence.num_tokens_to_cache)
        if blocks.has_table(sequence.sequence_id):
            table = blocks.table(sequence.sequence_id)
            if num_needed * blocks.num_groups > len(table.block_ids):
                to_come += max(0, blocks.most_held(num_needed, table.first) - table.num_held)
        else:
            shared = num_shared_tokens(group.request, blocks.block_size) // blocks.block_size
            to_come += blocks.most_held(num_needed - shared)
    return to_come


def num_blocks_at_most(request: Request, blocks: BlockManager) -> int:
    """The request's own blocks when every choice has run to max_tokens; with a sliding window, the most held at once.
    The last token is never cached."""
    num_each = [blocks.num_units_for(request.max_num_tokens - 1)] * request.sampling.num_sequences
    return _held_by_choices(request, num_each, blocks)


def _held_by_choices(request: Request, num_each: list[int], blocks: BlockManager, num_left_behind: int = 0) -> int:
    """Blocks of choices with so many units each, of which they share those of the prompt."""
    if len(num_each) == 1:
        return blocks.most_held(num_each[0], num_left_behind)
    shared = num_shared_tokens(request, blocks.block_size) // blocks.block_size
    of_prompt = blocks.most_held(shared, min(shared, num_left_behind))
    return of_prompt + sum(blocks.most_held(num_units - shared) for num_units in num_each)


def num_blocks_alone(request: Request, blocks: BlockManager) -> int:
    """Blocks of the request at its longest, and of its adapter."""
    of_adapter = 0 if request.adapter is None else request.adapter.num_blocks
    return of_adapter + num_blocks_at_most(request, blocks)
