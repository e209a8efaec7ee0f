"""Block tables of all sequences over one pool (PagedAttention, section 4.2), and the operations on them: allocate,
append, fork, free (section 5.2). Adapters and the training arena use blocks of the same pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from itertools import takewhile

from service.core.adapter import Adapter, AdapterLoad
from service.core.block_moves import BlockCopy, Transfer
from service.core.layer_groups import ALL_SEE_ALL
from service.core.sequence import Sequence
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_pool import BlockPool, BlockSupply
from service.kvcache.block_table import HOLE, BlockTable, without_holes
from service.kvcache.cache_room import CacheRoom
from service.kvcache.contiguous_run import OUT_OF_THE_QUESTION, cheapest_run
from service.kvcache.prefix_cache import PrefixCache
from service.kvcache.swap_space import SwapSpace
from service.kvcache.training_arena import TrainingArena


class Fit(Enum):
    """Does it fit? OK: now. LATER: once others have freed blocks. NEVER: not even in an empty cache."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


Append = tuple[int, int, int]
"""(sequence id, tokens to make room for, first position to be written): the arguments of `append`."""


class BlockManager:
    """Blocks are allocated on demand, so a sequence wastes less than one block. Sequences are known by id. Each table
    has an executor row of its own.

    With block_size 1 the tables are those of TokenAttention (LightLLM): position -> slot of one token. A slot is
    written once, by the sequence that allocated it, so copy-on-write never happens. Every sequence needs a slot for
    every token, so `BlockSupply.append_each` allocates those of a whole iteration at once.

    With a `window`, a sequence gives blocks back while it grows, and the first units of its table become holes; blocks
    of full-attention groups are kept. Every block counts as one, whichever group uses it: a unit of a table takes one
    block per layer group (core/layer_groups.py).

    supply: allocates new blocks. released_rows: rows that `take_released_rows` will return. longest_sequence: tokens of
    the longest sequence that fits alone; None: any length, since all layers have a window.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_cache: PrefixCache,
        num_host_blocks: int = 0,
        num_adapter_slots: int = 0,
        window: AttentionWindow | None = None,
    ) -> None:
        assert block_size > 0
        self.block_size = block_size
        self.window = window
        self.groups = ALL_SEE_ALL if window is None else window.groups
        self.num_groups = self.groups.size
        self._prefix_cache = prefix_cache
        self.pool = BlockPool(num_blocks)
        self.longest_sequence = CacheRoom(num_blocks, block_size, window).longest_sequence
        # More than the device holds could never be needed at once (PagedAttention, section 4.5).
        self.swap_space = SwapSpace(min(num_host_blocks, num_blocks), self.pool)
        self.adapter_slots = AdapterSlots(num_adapter_slots, self.pool)
        self.arena = TrainingArena(self.pool)
        self.supply = BlockSupply(self.pool, prefix_cache.known, (self.arena, self.adapter_slots))
        self._tables: dict[int, BlockTable] = {}
        self._holes_of_swapped: dict[int, int] = {}  # by sequence id: number of units with holes, if any
        self._free_rows: list[int] = []
        self._num_rows = 0
        self.released_rows: list[int] = []

    def num_units_for(self, num_tokens: int) -> int:
        """Units of a table for `num_tokens` tokens; the last one may be partly filled."""
        return -(-num_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks for `num_tokens` tokens of one sequence, as long as none is given back."""
        return self.num_units_for(num_tokens) * self.num_groups

    def num_tokens_in(self, num_entries: int) -> int:
        """Tokens that fit a table of `num_entries` entries."""
        return num_entries // self.num_groups * self.block_size

    def most_held(self, num_units: int, num_left_behind: int = 0) -> int:
        """See `AttentionWindow.most_held`; without a window, `num_units`."""
        return num_units if self.window is None else self.window.most_held(num_units, self.block_size, num_left_behind)

    @property
    def most_tokens_seen(self) -> int | None:
        """The most tokens in the windowed blocks that a decode sees; None: there is no window."""
        if self.window is None:
            return None
        return (self.num_units_for(self.window.num_tokens) + 1) * self.block_size

    @property
    def num_occupied(self) -> int:
        """Blocks that cannot be allocated now."""
        return self.pool.num_blocks - self.supply.num_available

    def fit(self, num_blocks: int, keep_free: int = 0) -> Fit:
        """Whether `num_blocks` can be allocated now so that `keep_free` more are still available."""
        if num_blocks > self.pool.num_blocks:
            return Fit.NEVER
        return Fit.OK if num_blocks + keep_free <= self.supply.num_available else Fit.LATER

    def table(self, sequence_id: int) -> BlockTable:
        """The table of a sequence on the device."""
        return self._tables[sequence_id]

    def has_table(self, sequence_id: int) -> bool:
        """Whether the sequence is on the device."""
        return sequence_id in self._tables

    def holds(self, sequence_id: int) -> bool:
        """Whether the sequence has blocks, on the device or on the host."""
        return sequence_id in self._tables or self.swap_space.holds(sequence_id)

    @property
    def tokens_per_prefix_entry(self) -> int:
        """See `PrefixCache`."""
        return self._prefix_cache.tokens_per_entry

    def match_prefix(self, sequence: Sequence, salt: str) -> list[int]:
        """Cached blocks for the start of the sequence. They may be free: allocating anything else may evict them."""
        return self._prefix_cache.match(sequence, salt)

    def forget_prefixes(self) -> None:
        """Clear the prefix cache. Sequences keep their blocks."""
        self._prefix_cache.known.forget_all()

    def num_free_among(self, block_ids: list[int]) -> int:
        """How many of these blocks are free, so that sharing them makes fewer blocks available."""
        return sum(block_id != HOLE and self.pool.reference_count(block_id) == 0 for block_id in block_ids)

    def num_also_held_by_others(self, prefix: list[int], num_holders: int) -> int:
        """How many entries of the prefix, from its start on, are each held by more than `num_holders` tables. Holes do
        not count against it if all other entries are held; with holes, the answer is otherwise 0."""
        held = self._held(prefix)
        counts = map(self.pool.reference_count, held)
        num_held = sum(1 for _ in takewhile(lambda count: count > num_holders, counts))
        if num_held == len(held):
            return len(prefix)
        return num_held if len(held) == len(prefix) else 0

    def allocate(self, sequence_id: int, num_tokens: int, prefix: list[int]) -> None:
        """Create a table for `num_tokens` tokens: the blocks of `prefix`, then new ones. The caller has checked
        `fit`."""
        assert sequence_id not in self._tables
        self.pool.share_many(self._held(prefix))
        new = self.supply.take(self.num_blocks_for(num_tokens) - len(prefix))
        self._add_table(sequence_id, prefix + new)

    def cache_prefix(self, sequence: Sequence, salt: str, num_tokens: int) -> None:
        """Add the full blocks of the sequence's first `num_tokens` tokens, all computed, to the prefix cache."""
        if num_tokens - sequence.num_cached_blocks * self.block_size >= self._prefix_cache.tokens_per_entry:
            self._prefix_cache.insert(sequence, salt, self._tables[sequence.sequence_id].block_ids, num_tokens)

    def cache_decoded(self, sequence: Sequence, salt: str) -> None:
        """As `cache_prefix`, for all tokens before the last one whose id is known. Only for a sequence that was never
        preempted: they are all computed then. Does nothing before a token was drawn: prompt chunks are cached as they
        are computed."""
        num_known = sequence.num_known_tokens
        if num_known > sequence.num_prompt_tokens:
            self.cache_prefix(sequence, salt, num_known - 1)

    def num_blocks_to_append(self, appends: Iterable[Append]) -> int:
        """Blocks that these appends would allocate, one after the other. When sequences that share a block all write to
        it, each gets a copy except the last one, which keeps the block."""
        needed = 0
        num_copied: Counter[int] = Counter()
        for sequence_id, num_tokens, write_from in appends:
            block_ids = self._tables[sequence_id].block_ids
            needed += max(0, self.num_blocks_for(num_tokens) - len(block_ids))
            for block_id in self._blocks_at(sequence_id, write_from):
                if self.pool.reference_count(block_id) - num_copied[block_id] > 1:
                    num_copied[block_id] += 1
                    needed += 1
        return needed

    def append(self, sequence_id: int, num_tokens: int, write_from: int) -> list[BlockCopy]:
        """Make room for `num_tokens` tokens, of which those from position `write_from` on will be written.

        A shared block that would be written is replaced by a copy; the returned copies must be carried out before the
        write. Only the blocks at `write_from` can be shared, since later ones are new.
        """
        table = self._tables[sequence_id]
        copies: list[BlockCopy] = []
        first = write_from // self.block_size * self.num_groups
        for index, source in enumerate(self._blocks_at(sequence_id, write_from), first):
            if self.pool.reference_count(source) > 1:
                destination = self.supply.take_one()
                self.pool.release(source)
                table.replace(index, destination)
                copies.append(BlockCopy(source, destination))
        for _ in range(self.num_blocks_for(num_tokens) - len(table.block_ids)):
            table.append(self.supply.take_one())
        return copies

    def forget_unseen(self, sequence_id: int, position: int) -> None:
        """No token of the sequence before `position` will be computed again: free the windowed blocks that later tokens
        do not see. An iteration in flight may still read them. That is safe: only later plans write to them, and the
        device runs plans in order."""
        if self.window is not None:
            table = self._tables[sequence_id]
            dropped = table.drop_before(self.window.first_unit(position, self.block_size))
            if dropped:
                self.pool.release_many(reversed(dropped))

    def load_adapter(self, adapter: Adapter) -> AdapterLoad | None:
        """Give a pinned adapter a slot and blocks; None if it is resident. The caller has checked `has_slot_for` and
        `fit`."""
        if self.adapter_slots.is_resident(adapter):
            return None
        self.adapter_slots.free_slot()
        return self.adapter_slots.place(adapter, self.supply.take(adapter.num_blocks))

    def lend_arena(self, num_blocks: int) -> list[BlockCopy] | None:
        """Lend a training `num_blocks` contiguous blocks; None if there is no such run now. Chooses the run with the
        fewest blocks in use, and among those the one with the fewest cached blocks. Blocks in use are moved out of the
        way: the returned copies must be carried out before the next write. The caller has checked `fit`, and that no
        arena is lent."""
        self.adapter_slots.free_blocks(num_blocks)
        first = cheapest_run(self._costs_of_blocks(), num_blocks)
        if first is None:
            return None
        run = range(first, first + num_blocks)
        self.adapter_slots.clear(run)
        in_use = [block_id for block_id in run if self.pool.reference_count(block_id)]
        free = [block_id for block_id in run if not self.pool.reference_count(block_id)]
        self.pool.share_many(free)
        self._prefix_cache.known.forget(free)
        moved = dict(zip(in_use, self.supply.take(len(in_use)), strict=True))
        self._move(moved)
        self.arena.lend(first, num_blocks)
        return [BlockCopy(*pair) for pair in moved.items()]

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """Create a table for `child_id` that shares the parent's blocks of the first `num_tokens` tokens."""
        assert child_id not in self._tables
        shared = self._tables[parent_id].block_ids[: self.num_blocks_for(num_tokens)]
        self.pool.share_many(self._held(shared))
        self._add_table(child_id, shared)

    def refork(self, parent_of: dict[int, int]) -> None:
        """Make each child's table a fork of its parent's present one, all at once (beam search)."""
        adopted: list[tuple[BlockTable, int, list[int]]] = []
        for child_id, parent_id in parent_of.items():
            child, theirs = self._tables[child_id], self._tables[parent_id].block_ids
            start = _first_difference(child.block_ids, theirs)
            adopted.append((child, start, theirs[start:]))
        for _, _, block_ids in adopted:
            self.pool.share_many(self._held(block_ids))
        for child, start, block_ids in adopted:
            self.pool.release_many(reversed(self._held(child.block_ids[start:])))
            child.adopt(block_ids, start)

    def free(self, sequence_id: int) -> None:
        """Free the sequence's blocks, wherever they are; last ones first, so that a shared prefix is evicted last."""
        if self.swap_space.holds(sequence_id):
            self.swap_space.free(sequence_id)
            self._holes_of_swapped.pop(sequence_id, None)
            return
        block_ids = self._take_table(sequence_id).held
        if self.swap_space.is_swapping(sequence_id):
            self.swap_space.keep_until_arrival(sequence_id, block_ids)
            return
        self.pool.release_many(reversed(block_ids))

    def release_rows(self, rows: Iterable[int]) -> None:
        """Report these rows as released (again)."""
        self.released_rows += rows

    def take_released_rows(self) -> tuple[int, ...]:
        """Rows whose tables were removed since the last call, and those of `release_rows`. The executor may then
        forget them."""
        released, self.released_rows = tuple(self.released_rows), []
        return released

    def num_distinct_blocks(self, sequence_ids: list[int]) -> int:
        """How many device blocks the sequences hold; shared ones count once."""
        return len({block for sequence_id in sequence_ids for block in self._tables[sequence_id].held})

    def swap_out(self, sequence_ids: list[int]) -> Transfer:
        """Move the sequences' blocks to the host. The caller has checked `swap_space.num_free`."""
        tables = {i: self._take_table(i) for i in sequence_ids}
        self._holes_of_swapped |= {i: table.first for i, table in tables.items() if table.first}
        return self.swap_space.swap_out({i: table.held for i, table in tables.items()})

    def swap_in(self, sequence_ids: list[int]) -> Transfer:
        """Move their blocks back into new device blocks, shared as before. The caller has checked `fit`."""
        device_of: dict[int, int] = {}
        for sequence_id in sequence_ids:
            held = []
            for host_block in self.swap_space.table(sequence_id):
                if host_block in device_of:
                    self.pool.share(device_of[host_block])
                else:
                    device_of[host_block] = self.supply.take_one()
                held.append(device_of[host_block])
            self._add_table(sequence_id, self._with_holes(held, self._holes_of_swapped.pop(sequence_id, 0)))
        return self.swap_space.swap_in(sequence_ids, device_of)

    def lose(self, block_ids: set[int]) -> list[int]:
        """The contents of these blocks are wrong: remove them from the prefix cache. Returns the holding sequences."""
        self._prefix_cache.known.forget(block_ids)
        return [i for i, table in self._tables.items() if not block_ids.isdisjoint(table.block_ids)]

    def _add_table(self, sequence_id: int, block_ids: list[int]) -> None:
        """Give the table a free row, or a new one. Row 0 is never used. The number of rows is the largest number of
        tables that ever existed at once."""
        if not self._free_rows:
            self._num_rows += 1
            self._free_rows.append(self._num_rows)
        self._tables[sequence_id] = BlockTable(self._free_rows.pop(), block_ids, self.groups)

    def _blocks_at(self, sequence_id: int, position: int) -> list[int]:
        """The blocks, one per group, of the token at `position`; empty if that is beyond the table's end."""
        size = self.num_groups
        index = position // self.block_size * size
        return self._tables[sequence_id].block_ids[index : index + size]

    def _held(self, block_ids: list[int]) -> list[int]:
        return block_ids if self.window is None else without_holes(block_ids)

    def _with_holes(self, held: list[int], num_left_behind: int) -> list[int]:
        """Rebuild a table from its blocks, if its first `num_left_behind` units had holes."""
        num_full, holes = self.groups.num_full, [HOLE] * self.groups.num_windowed
        entries = []
        for unit in range(num_left_behind):
            entries += held[unit * num_full : (unit + 1) * num_full] + holes
        return entries + held[num_left_behind * num_full :]

    def _take_table(self, sequence_id: int) -> BlockTable:
        table = self._tables.pop(sequence_id)
        self._free_rows.append(table.row)
        self.released_rows.append(table.row)
        return table

    def _costs_of_blocks(self) -> list[int]:
        """For each block, the cost of lending it to a training: most if it is in use, little if it is cached. Blocks of
        transfers and pinned adapters cannot be moved, so they are out of the question."""
        most = self.pool.num_blocks
        costs = [most if is_used else 0 for is_used in self.pool.is_used()]
        for block_id in self._prefix_cache.known.block_ids():
            costs[block_id] = costs[block_id] or 1
        tables = [self._tables[i].held for i in self.swap_space.swapping_sequence_ids() if i in self._tables]
        for block_ids in (*tables, self.swap_space.held_device_blocks(), self.adapter_slots.pinned_blocks()):
            for block_id in block_ids:
                costs[block_id] = OUT_OF_THE_QUESTION
        return costs

    def _move(self, moved: dict[int, int]) -> None:
        """Make all holders, and the prefix cache, use the second block of each pair in place of the first."""
        for source, destination in moved.items():
            self.pool.move(source, destination)
        for table in self._tables.values():
            if not moved.keys().isdisjoint(table.block_ids):
                for index, block_id in enumerate(table.block_ids):
                    if block_id in moved:
                        table.replace(index, moved[block_id])
        self._prefix_cache.known.move(moved)


def _first_difference(ours: list[int], theirs: list[int]) -> int:
    """Index of the first entry in which two tables differ, or the length of the shorter one."""
    differing = (index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next(differing, min(len(ours), len(theirs)))
