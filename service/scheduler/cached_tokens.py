"""How many tokens the used blocks hold."""

from __future__ import annotations

from service.kvcache.block_manager import BlockManager
from service.scheduler.lanes import Lanes


def num_cached_tokens(blocks: BlockManager, lanes: Lanes) -> int:
    """Tokens in the device's used blocks; those of a shared block count once, and adapters' blocks hold none. With
    several layer groups a token counts once per group, since each keeps it in a block of its own.

    Blocks that are being swapped out count as empty.
    """
    unfilled = sum(batch.num_unfilled() for batch in lanes)
    for group in (group for batch in lanes for group in batch.unbatched.values()):
        last_blocks = set()
        for sequence in group.computing:
            if not blocks.has_table(sequence.sequence_id):
                continue
            table = blocks.table(sequence.sequence_id)
            if table.num_held and table.block_ids[-1] not in last_blocks:  # else a fork that still shares the block
                unfilled += blocks.num_tokens_in(len(table.block_ids)) - sequence.num_computed_tokens
                last_blocks.add(table.block_ids[-1])
    num_used = blocks.pool.num_used - blocks.swap_space.num_departing - blocks.adapter_slots.num_blocks
    num_used -= blocks.arena.num_idle_blocks
    return max(0, num_used * blocks.block_size - unfilled * blocks.num_groups)
