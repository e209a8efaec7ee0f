"""Blocks for the next tokens of running groups: how many each group needs, and who gets them."""

from __future__ import annotations

from dataclasses import dataclass

from service.core.iteration import Int64Array
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import Append, BlockManager
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.lanes import Lanes
from service.scheduler.memory_need import num_blocks_to_come, num_shared_tokens
from service.scheduler.plan_draft import PlanDraft


@dataclass(frozen=True, slots=True)
class Shortage:
    """Blocks that running groups need for their next tokens. decodes: what `DecodeBatch.shortage` returned. unbatched:
    the other groups, each with its number of blocks. num_blocks: of all together."""

    decodes: Int64Array
    unbatched: list[tuple[SequenceGroup, int]]
    num_blocks: int


class BlockGrowth:
    """For the lane being decided, unless stated otherwise. Engine thread only."""

    def __init__(self, blocks: BlockManager, lanes: Lanes) -> None:
        self._blocks = blocks
        self._lanes = lanes

    def shortage(self) -> Shortage:
        """What the groups need for one next token per sequence; a prompt chunk takes more if it can (`room_for_chunk`).
        A group with one choice never writes to a shared block, so it needs nothing while its last block has room; with
        several choices, a shared block may have to be copied. With a sliding window, blocks that a decode no longer
        sees are freed first, if it needs a new one: a group that has just left the decode batch still holds some."""
        return self._shortage(self._lanes.batch)

    def num_promised(self) -> int:
        """Blocks that the prompts of all lanes' running groups will still need."""
        groups = (group for batch in self._lanes for group in batch.unbatched.values())
        return sum(num_blocks_to_come(group, self._blocks) for group in groups)

    @property
    def leaves_room_elsewhere(self) -> bool:
        """Whether enough blocks are available for the next tokens of the other lanes' groups."""
        others = [batch for batch in self._lanes if batch is not self._lanes.batch]
        return sum(self._shortage(batch).num_blocks for batch in others) <= self._blocks.supply.num_available

    def _shortage(self, batch: DecodeBatch) -> Shortage:
        blocks = self._blocks
        decodes, unbatched = batch.shortage(), list[tuple[SequenceGroup, int]]()
        for group in batch.unbatched.values():
            live = group.live
            if len(live) == 1:
                room = blocks.num_tokens_in(len(blocks.table(live[0].sequence_id).block_ids))
                if _next_end(live[0]) > room and not self.is_swapping(group):
                    self._forget_unseen(live[0])
                    unbatched.append((group, blocks.num_groups))
            elif not self.is_swapping(group):
                unbatched.append((group, blocks.num_blocks_to_append(self._appends(group))))
        return Shortage(decodes, unbatched, len(decodes) + sum(num_blocks for _, num_blocks in unbatched))

    def has_room(self, shortage: Shortage) -> bool:
        """Whether every group can have its blocks now."""
        return shortage.num_blocks <= self._blocks.supply.num_available

    def will_have_room(self, shortage: Shortage) -> bool:
        """Whether every group can have its blocks now, or once the transfers under way have finished."""
        return shortage.num_blocks <= self._blocks.supply.num_available + self._blocks.swap_space.num_departing

    def grow(self, shortage: Shortage, draft: PlanDraft) -> None:
        """Give blocks to the unbatched groups, in order; a group for which there are too few skips this iteration. The
        decode batch takes its own when it advances; while blocks are short, it is empty."""
        num_kept = len(shortage.decodes)
        for group, num_blocks in shortage.unbatched:
            if num_blocks + num_kept <= self._blocks.supply.num_available:
                for append in self._appends(group):
                    draft.copies += self._blocks.append(*append)
            else:
                draft.sitting_out.add(group.arrival_order)

    def room_for(self, sequence: Sequence, num_tokens: int) -> int:
        """Grow the sequence's table to hold `num_tokens` tokens, as far as there are free blocks, without reclaiming
        any. Returns how many it can hold. The sequence must not write to shared blocks."""
        blocks, table = self._blocks, self._blocks.table(sequence.sequence_id)
        num_more = min(blocks.num_blocks_for(num_tokens) - len(table.block_ids), blocks.pool.num_free)
        if num_more >= blocks.num_groups:
            self._forget_unseen(sequence)
            with_more = blocks.num_tokens_in(len(table.block_ids) + num_more)
            blocks.append(sequence.sequence_id, with_more, sequence.num_computed_tokens)
        return blocks.num_tokens_in(len(table.block_ids))

    def room_for_chunk(self, group: SequenceGroup, sequence: Sequence, num_tokens: int) -> int:
        """As `room_for`, but blocks may also be reclaimed, and shared blocks are copied if they are written to."""
        blocks, table = self._blocks, self._blocks.table(sequence.sequence_id)
        num_more = min(blocks.num_blocks_for(num_tokens) - len(table.block_ids), blocks.supply.num_available)
        if num_more >= blocks.num_groups:
            with_more = blocks.num_tokens_in(len(table.block_ids) + num_more)
            blocks.append(sequence.sequence_id, with_more, self._write_from(group, sequence))
        return blocks.num_tokens_in(len(table.block_ids))

    def is_swapping(self, group: SequenceGroup) -> bool:
        """Whether the group's blocks are being swapped out or in."""
        swap_space = self._blocks.swap_space
        return swap_space.has_transfers and swap_space.is_swapping(group.leader.sequence_id)

    def _forget_unseen(self, sequence: Sequence) -> None:
        """Free blocks that a decode no longer sees. Not for prompts: their blocks are freed when the chunk's result
        comes, after they were offered to the prefix cache."""
        if sequence.num_tokens_to_compute == 1:
            self._blocks.forget_unseen(sequence.sequence_id, sequence.num_computed_tokens)

    def _appends(self, group: SequenceGroup) -> list[Append]:
        """One token more for each sequence. Choices without a table are left out: they wait for their prompt."""
        return [
            (s.sequence_id, _next_end(s), self._write_from(group, s))
            for s in group.computing
            if s.num_tokens_to_compute > 0 and self._blocks.has_table(s.sequence_id)
        ]

    def _write_from(self, group: SequenceGroup, sequence: Sequence) -> int:
        """First position that the sequence may write. Choices never write the prefix that they share."""
        return max(sequence.num_computed_tokens, num_shared_tokens(group.request, self._blocks.block_size))


def _next_end(sequence: Sequence) -> int:
    """The position after the next token to compute."""
    return sequence.num_computed_tokens + (sequence.num_tokens_to_compute > 0)
