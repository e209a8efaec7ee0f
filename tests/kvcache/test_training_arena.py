from __future__ import annotations

import random
from collections.abc import Sequence as Items

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.adapter import Adapter
from service.core.block_moves import BlockCopy, Transfer
from service.core.sequence import Sequence
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_manager import BlockManager, Fit
from service.kvcache.block_pool import KnownBlocks
from service.kvcache.contiguous_run import OUT_OF_THE_QUESTION
from service.kvcache.prefix_cache import ChainedPrefixCache
from service.kvcache.training_arena import TrainingArena
from tests.examples import examples
from tests.kvcache.block_invariants import check_blocks

Patch = pytest.MonkeyPatch

SALT = ""
ACTIVATIONS = -5


class Memory:
    """What the blocks hold, written as plans would have it, late copies as late as may be."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.device = [[None] * block_size for _ in range(num_blocks)] if num_blocks else []
        self.host: dict[int, list[int | None]] = {}

    def copy(self, copies: Items[BlockCopy]) -> None:
        read = [list(self.device[copy.source]) for copy in copies]
        for copy, cells in zip(copies, read, strict=True):
            self.device[copy.destination] = cells

    def carry(self, transfer: Transfer) -> None:
        for device_block, host_block in zip(transfer.device_blocks, transfer.host_blocks, strict=True):
            if transfer.to_host:
                self.host[host_block] = list(self.device[device_block])
            else:
                self.device[device_block] = list(self.host[host_block])


class World:
    """A block manager under everything that happens to one, and the tokens that each sequence must find again."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.block_size = chance.choice([1, 2, 4])
        num_blocks = chance.randint(4, 60)
        self.cache = ChainedPrefixCache(self.block_size, chance.choice([1, 1, 2]))
        self.blocks = BlockManager(num_blocks, self.block_size, self.cache, num_blocks, num_adapter_slots=2)
        self.memory = Memory(num_blocks, self.block_size)
        self.sequences: dict[int, Sequence] = {}
        self.transfers: list[Transfer] = []
        self.moving: set[int] = set()
        self.adapters = [Adapter(str(i), i, chance.randint(1, 3), str(i)) for i in (1, 2, 3)]
        self.running: list[Adapter] = []
        self.next_id = 0
        self.num_moved = 0

    def on_device(self) -> list[Sequence]:
        away = self.blocks.swap_space.holds
        return [s for s in self.sequences.values() if not away(s.sequence_id) and s.sequence_id not in self.moving]

    def write(self, sequence: Sequence, start: int) -> None:
        block_ids = self.blocks.table(sequence.sequence_id).block_ids
        for position in range(start, sequence.num_tokens):
            self.memory.device[block_ids[position // self.block_size]][position % self.block_size] = sequence.token_ids[
                position
            ]

    def begin(self) -> None:
        tokens = [self.chance.randint(0, 1) for _ in range(self.chance.randint(1, 14))]
        sequence = Sequence(self.next_id, 0, 0, tokens, len(tokens), 99)
        prefix = self.blocks.match_prefix(sequence, SALT)
        needed = self.blocks.num_blocks_for(len(tokens)) - len(prefix) + self.blocks.num_free_among(prefix)
        if self.blocks.fit(needed) is Fit.OK:
            self.next_id += 1
            self.blocks.allocate(sequence.sequence_id, len(tokens), prefix)
            self.sequences[sequence.sequence_id] = sequence
            self.write(sequence, len(prefix) * self.block_size)
            self.blocks.cache_prefix(sequence, SALT, len(tokens))

    def fork(self) -> None:
        if on_device := self.on_device():
            parent = self.chance.choice(on_device)
            child = Sequence(self.next_id, 0, 0, list(parent.token_ids), parent.num_tokens, 99)
            self.next_id += 1
            self.blocks.fork(parent.sequence_id, child.sequence_id, parent.num_tokens)
            self.sequences[child.sequence_id] = child

    def append(self) -> None:
        if not (on_device := self.on_device()):
            return
        sequence = self.chance.choice(on_device)
        start, end = sequence.num_tokens, sequence.num_tokens + self.chance.randint(1, 5)
        wanted = (sequence.sequence_id, end, start)
        if self.blocks.fit(self.blocks.num_blocks_to_append([wanted])) is Fit.OK:
            self.memory.copy(self.blocks.append(*wanted))
            sequence.token_ids += [self.chance.randint(0, 1) for _ in range(start, end)]
            self.write(sequence, start)

    def end(self) -> None:
        if self.sequences:
            sequence_id = self.chance.choice(list(self.sequences))
            del self.sequences[sequence_id]
            self.moving.discard(sequence_id)
            self.blocks.free(sequence_id)

    def swap_out(self) -> None:
        if on_device := self.on_device():
            leaving = [s.sequence_id for s in self.chance.sample(on_device, self.chance.randint(1, len(on_device)))]
            if self.blocks.num_distinct_blocks(leaving) <= self.blocks.swap_space.num_free:
                self.transfers.append(self.blocks.swap_out(leaving))

    def swap_in(self) -> None:
        space = self.blocks.swap_space
        there = [i for i in self.sequences if space.holds(i) and not space.is_swapping(i)]
        if there and self.blocks.fit(space.num_blocks_of(there)) is Fit.OK:
            self.transfers.append(self.blocks.swap_in(there))
            self.moving.update(there)

    def finish(self) -> None:
        if self.transfers:
            transfer = self.transfers.pop(0)
            self.memory.carry(transfer)
            self.blocks.swap_space.finish(transfer.transfer_id)
            self.moving = {i for i in self.moving if self.blocks.swap_space.is_swapping(i)}

    def start_adapter(self) -> None:
        adapter, slots = self.chance.choice(self.adapters), self.blocks.adapter_slots
        if slots.has_slot_for(adapter) and self.blocks.fit(slots.num_blocks_to_pin(adapter)) is Fit.OK:
            slots.pin(adapter)
            load = self.blocks.load_adapter(adapter)
            self.running.append(adapter)
            for block_id in load.block_ids if load else ():
                self.memory.device[block_id] = [-adapter.adapter_id] * self.block_size

    def end_adapter(self) -> None:
        if self.running:
            self.blocks.adapter_slots.unpin(self.running.pop(self.chance.randrange(len(self.running))))

    def lend(self) -> None:
        blocks = self.blocks
        blocks.arena.give_back()
        if not blocks.supply.num_available:
            return
        num_blocks = self.chance.randint(-(-blocks.supply.num_available // 2), blocks.supply.num_available)
        before = self.shape()
        occupied, prefixes = blocks.num_occupied, self.live_prefixes()
        copies = blocks.lend_arena(num_blocks)
        assert self.live_prefixes() >= prefixes, "what is in use and was found is found"
        assert self.shape() == before, "who shared a block shares it"
        assert blocks.num_occupied == occupied
        if copies is not None:
            self.num_moved += len(copies)
            self.memory.copy(copies)
            lent = blocks.arena.lent
            assert lent is not None and lent.num_blocks == num_blocks
            for block_id in lent.block_ids:
                self.memory.device[block_id] = [ACTIVATIONS] * self.block_size

    def give_back(self) -> None:
        self.blocks.arena.give_back()

    def shape(self) -> list[list[int]]:
        """Which entries of the tables, and of what transfers hold, are one block."""
        numbers: dict[int, int] = {}
        tables = [table.block_ids for table in self.blocks._tables.values()]
        return [[numbers.setdefault(b, len(numbers)) for b in block_ids] for block_ids in tables]

    def live_prefixes(self) -> set[bytes]:
        """Entries of the prefix cache of which somebody holds all blocks."""
        count = self.blocks.pool.reference_count
        entries = self.cache.known.full.entries.values()
        return {entry.digest for entry in entries if all(count(block_id) for block_id in entry.block_ids)}

    def check(self) -> None:
        check_blocks(self.blocks)
        for sequence in self.on_device():
            for block_ids in (
                self.blocks.table(sequence.sequence_id).block_ids,
                self.blocks.match_prefix(sequence, SALT),
            ):
                read = [cell for block_id in block_ids for cell in self.memory.device[block_id]]
                assert read[: sequence.num_tokens] == sequence.token_ids[: len(read)], "its tokens are where it looks"
        for adapter in set(self.running):
            resident = self.blocks.adapter_slots._residents[adapter.adapter_id]
            assert all(set(self.memory.device[b]) == {-adapter.adapter_id} for b in resident.block_ids)

    def play(self, num_operations: int) -> None:
        names = [
            "begin",
            "begin",
            "begin",
            "fork",
            "append",
            "append",
            "end",
            "swap_out",
            "swap_in",
            "finish",
            "finish",
        ]
        names += ["start_adapter", "end_adapter", "lend", "give_back"]
        for _ in range(num_operations):
            getattr(self, self.chance.choice(names))()
            self.check()

    def close(self) -> None:
        for sequence_id in self.sequences:
            self.blocks.free(sequence_id)
        while self.transfers:
            self.finish()
        for adapter in self.running:
            self.blocks.adapter_slots.unpin(adapter)
        self.blocks.arena.give_back()
        for adapter in self.adapters:
            self.blocks.adapter_slots.forget(adapter)
        check_blocks(self.blocks)
        assert self.blocks.pool.num_used == 0


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whoever_is_moved_finds_all_again_and_no_block_is_lost(seed: int):
    world = World(random.Random(seed))
    world.play(80)
    world.close()


def test_the_worlds_do_move_blocks():
    worlds = [World(random.Random(seed)) for seed in range(examples(20))]
    for world in worlds:
        world.play(80)
    assert sum(world.num_moved for world in worlds) > 50
    assert sum(world.blocks.arena.num_given_back for world in worlds) > 20


def a_table_not_told(patch: Patch) -> None:
    patch.setattr(BlockManager, "_move", lambda self, moved: [self.pool.move(*pair) for pair in moved.items()])


def a_prefix_left_behind(patch: Patch) -> None:
    patch.setattr(KnownBlocks, "move", lambda self, moved: None)


def a_block_in_transfer_moved(patch: Patch) -> None:
    costs = BlockManager._costs_of_blocks
    patch.setattr(BlockManager, "_costs_of_blocks", lambda self: [cost % OUT_OF_THE_QUESTION for cost in costs(self)])


def a_running_adapter_moved(patch: Patch) -> None:
    patch.setattr(AdapterSlots, "pinned_blocks", lambda self: [])


def a_copy_not_made(patch: Patch) -> None:
    lend = BlockManager.lend_arena
    patch.setattr(BlockManager, "lend_arena", lambda self, n: (lend(self, n) or [])[1:])


def a_block_lent_and_free(patch: Patch) -> None:
    lend = TrainingArena.lend

    def lend_too_much(self: TrainingArena, first_block: int, num_blocks: int) -> None:
        lend(self, first_block, num_blocks)
        self._pool.release(first_block)

    patch.setattr(TrainingArena, "lend", lend_too_much)


@pytest.mark.parametrize(
    "fault",
    [
        a_table_not_told,
        a_prefix_left_behind,
        a_block_in_transfer_moved,
        a_running_adapter_moved,
        a_copy_not_made,
        a_block_lent_and_free,
    ],
)
def test_a_fault_is_caught(fault, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, TypeError)):
        for seed in range(examples(60)):
            world = World(random.Random(seed))
            world.play(80)
            world.close()


def test_the_run_with_the_fewest_blocks_in_use_is_lent_and_nothing_that_is_found_for_nothing():
    cache = ChainedPrefixCache(2)
    blocks = BlockManager(12, 2, cache)
    for sequence_id, num_blocks in ((0, 2), (1, 3), (2, 2)):
        blocks.allocate(sequence_id, 2 * num_blocks, [])
    found = Sequence(1, 0, 0, [1] * 6, 6, 7)
    blocks.cache_prefix(found, SALT, 6)
    blocks.free(1)  # 2, 3, 4 are free and known; 7 to 11 are free and not
    assert blocks.lend_arena(5) == []
    assert blocks.arena.held_blocks() == range(7, 12)
    assert {2, 3, 4} <= set(cache.known.block_ids())
    blocks.arena.give_back()
    copies = blocks.lend_arena(6)
    assert copies is not None and [copy.source for copy in copies] == [6], "one is in the way of six"
    check_blocks(blocks)


def test_who_needs_the_blocks_has_them_at_once_and_before_an_idle_adapter_goes():
    blocks = BlockManager(10, 2, ChainedPrefixCache(2), num_adapter_slots=1)
    adapter = Adapter("a", 1, 2, "a")
    blocks.adapter_slots.pin(adapter)
    blocks.load_adapter(adapter)
    blocks.adapter_slots.unpin(adapter)
    assert blocks.lend_arena(6) == []
    assert blocks.fit(10) is Fit.OK and blocks.fit(11) is Fit.NEVER
    blocks.allocate(0, 4, [])
    assert blocks.arena.num_idle_blocks == 6, "two were free"
    blocks.supply.append_each([blocks.table(0)])
    assert blocks.arena.num_idle_blocks == 0 and blocks.adapter_slots.is_resident(adapter)
    assert (blocks.arena.num_lent, blocks.arena.num_given_back) == (1, 1)
    check_blocks(blocks)


def test_an_idle_adapter_in_the_way_goes_and_a_running_one_stays():
    for is_running in (False, True):
        blocks = BlockManager(10, 2, ChainedPrefixCache(2), num_adapter_slots=1)
        blocks.allocate(0, 4, [])
        adapter = Adapter("a", 1, 2, "a")
        blocks.adapter_slots.pin(adapter)
        blocks.load_adapter(adapter)
        blocks.free(0)
        if not is_running:
            blocks.adapter_slots.unpin(adapter)
        assert (blocks.lend_arena(7) is None) == is_running
        assert blocks.adapter_slots.is_resident(adapter) == is_running
        check_blocks(blocks)


def test_each_loan_has_a_number_of_its_own():
    blocks = BlockManager(4, 2, ChainedPrefixCache(2))
    leases = set()
    for _ in range(3):
        assert blocks.lend_arena(4) == []
        assert blocks.arena.lent is not None
        leases.add(blocks.arena.lent.lease)
        blocks.arena.give_back()
        blocks.arena.give_back()
    assert len(leases) == 3 and blocks.arena.num_given_back == 3
