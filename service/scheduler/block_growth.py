"""Blocks for the next tokens of running groups: which group needs how many, and which groups get them."""

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
    """The blocks that running groups need. decodes: `DecodeBatch.shortage`. unbatched: the other groups, each with its
    number of blocks."""

    decodes: Int64Array
    unbatched: list[tuple[SequenceGroup, int]]

    @property
    def num_blocks(self) -> int:
        return len(self.decodes) + sum(num_blocks for _, num_blocks in self.unbatched)


class BlockGrowth:
    """Engine thread only. Of the lane that is being decided."""

    def __init__(self, blocks: BlockManager, lanes: Lanes) -> None:
        self._blocks = blocks
        self._lanes = lanes

    def shortage(self) -> Shortage:
        """What the groups need for the next token of each sequence; a prompt's chunk takes more if there is more
        (`room_for_chunk`). A group of one choice writes to no shared block and needs nothing while its last block has
        room; one of several choices may have to copy a shared block. Under a window, a decode that needs a block has
        given back first what it no longer sees: if it has just left the batch, nobody has done so yet."""
        return self._shortage(self._lanes.batch)

    def num_promised(self) -> int:
        """Blocks that the prompts of running groups, of all lanes, will yet take."""
        groups = (group for batch in self._lanes for group in batch.unbatched.values())
        return sum(num_blocks_to_come(group, self._blocks) for group in groups)

    @property
    def leaves_room_elsewhere(self) -> bool:
        """Whether the groups of the other lanes can have what they need next."""
        others = [batch for batch in self._lanes if batch is not self._lanes.batch]
        return sum(self._shortage(batch).num_blocks for batch in others) <= self._blocks.supply.num_available

    def _shortage(self, batch: DecodeBatch) -> Shortage:
        blocks = self._blocks
        shortage = Shortage(batch.shortage(), [])
        for group in batch.unbatched.values():
            live = group.live
            if len(live) == 1:
                room = blocks.num_tokens_in(len(blocks.table(live[0].sequence_id).block_ids))
                if _next_end(live[0]) > room and not self.is_swapping(group):
                    self._forget_unseen(live[0])
                    shortage.unbatched.append((group, blocks.num_groups))
            elif not self.is_swapping(group):
                shortage.unbatched.append((group, blocks.num_blocks_to_append(self._appends(group))))
        return shortage

    def has_room(self, shortage: Shortage) -> bool:
        """Whether every group can have what it needs now."""
        return shortage.num_blocks <= self._blocks.supply.num_available

    def will_have_room(self, shortage: Shortage) -> bool:
        """Whether there are enough blocks for all groups, or will be once the transfers under way have finished."""
        return shortage.num_blocks <= self._blocks.supply.num_available + self._blocks.swap_space.num_departing

    def grow(self, shortage: Shortage, draft: PlanDraft) -> None:
        """Give blocks to the unbatched groups, in their order; a group for which there are too few sits this iteration
        out. The decode batch takes its own as it advances; it is empty while blocks are short."""
        num_kept = len(shortage.decodes)
        for group, num_blocks in shortage.unbatched:
            if num_blocks + num_kept <= self._blocks.supply.num_available:
                for append in self._appends(group):
                    draft.copies += self._blocks.append(*append)
            else:
                draft.sitting_out.add(group.arrival_order)

    def room_for(self, sequence: Sequence, num_tokens: int) -> int:
        """Let the sequence's blocks have room for so many tokens, as far as blocks are free that nobody asks for.
        Returns for how many they have. It writes to no shared block."""
        blocks, table = self._blocks, self._blocks.table(sequence.sequence_id)
        num_more = min(blocks.num_blocks_for(num_tokens) - len(table.block_ids), blocks.pool.num_free)
        if num_more >= blocks.num_groups:
            self._forget_unseen(sequence)
            with_more = blocks.num_tokens_in(len(table.block_ids) + num_more)
            blocks.append(sequence.sequence_id, with_more, sequence.num_computed_tokens)
        return blocks.num_tokens_in(len(table.block_ids))

    def room_for_chunk(self, group: SequenceGroup, sequence: Sequence, num_tokens: int) -> int:
        """As `room_for`, of any blocks that can be taken."""
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
        """Of a decode; a prompt's blocks are offered to others when its chunk's result comes, and given back then."""
        if sequence.num_tokens_to_compute == 1:
            self._blocks.forget_unseen(sequence.sequence_id, sequence.num_computed_tokens)

    def _appends(self, group: SequenceGroup) -> list[Append]:
        """Room for each sequence's next token. Choices that have no table yet wait for their prompt."""
        return [
            (s.sequence_id, _next_end(s), self._write_from(group, s))
            for s in group.computing
            if s.num_tokens_to_compute > 0 and self._blocks.has_table(s.sequence_id)
        ]

    def _write_from(self, group: SequenceGroup, sequence: Sequence) -> int:
        """A choice never writes the prefix that it shares, so its writes begin after it."""
        return max(sequence.num_computed_tokens, num_shared_tokens(group.request, self._blocks.block_size))


def _next_end(sequence: Sequence) -> int:
    """Position behind the next token that it computes."""
    return sequence.num_computed_tokens + (sequence.num_tokens_to_compute > 0)
