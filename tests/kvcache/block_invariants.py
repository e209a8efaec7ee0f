"""The laws of blocks: who holds them, and that each is either used or free, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_pool import BlockPool
from service.kvcache.block_table import HOLE, num_left_behind
from service.kvcache.swap_space import SwapSpace


def check_blocks(blocks: BlockManager) -> None:
    """Reference counts match holders, and every block is either used or free, once."""
    held = Counter[int]()
    for table in blocks._tables.values():
        assert len(set(table.held)) == len(table.held), "a table holds a block once"
        assert table.first == num_left_behind(table.block_ids, blocks.groups) and HOLE not in table.held
        assert len(table.held) == table.num_held and len(table.block_ids) % blocks.num_groups == 0, "holes come first"
        held.update(table.held)
    held.update(blocks.swap_space.held_device_blocks())
    for block_id in blocks.adapter_slots.held_blocks():
        assert block_id not in held, "an adapter shares its blocks with nobody"
        held[block_id] = 1
    for block_id in blocks.arena.held_blocks():
        assert block_id not in held, "a training shares its blocks with nobody"
        assert block_id not in blocks._prefix_cache.known.block_ids(), "nobody looks for anything there"
        held[block_id] = 1
    assert all(map(blocks.swap_space.holds, blocks._holes_of_swapped)), "they are on the host"
    check_swap_space(blocks.swap_space)
    check_adapter_slots(blocks.adapter_slots)
    rows = sorted([*blocks._free_rows, *(table.row for table in blocks._tables.values())])
    assert rows == list(range(1, blocks._num_rows + 1)), "a row is one table's, or free"
    check_counts(blocks.pool, held)


def check_swap_space(space: SwapSpace) -> None:
    """The host blocks' reference counts match their holders."""
    if space._host is None:
        return
    held = Counter(b for table in space._tables.values() for b in table)
    held.update(b for flight in space._in_flight.values() for b in flight.host_blocks)
    check_counts(space._host, held)


def check_adapter_slots(adapters: AdapterSlots) -> None:
    """Each slot is free or has one adapter, and the counts match the residents."""
    residents, idle = adapters._residents, adapters._idle
    slots = [*adapters._free_slots, *(resident.slot for resident in residents.values())]
    assert sorted(slots) == list(range(1, adapters.num_slots + 1)), "a slot is one adapter's, or free"
    assert idle.keys() == residents.keys() - adapters._num_users.keys(), "who has no users is idle"
    assert adapters._num_users.keys() <= residents.keys(), "who runs has its adapter on the device"
    assert all(num > 0 for num in adapters._num_users.values())
    assert adapters.num_blocks == len(adapters.held_blocks())
    assert adapters.num_idle_blocks == sum(len(residents[adapter_id].block_ids) for adapter_id in idle)


def check_counts(pool: BlockPool, held: Mapping[int, int]) -> None:
    """Each block has as many holders as `held` says (0 if it is not in there)."""
    counted = {block_id: count for block_id, count in enumerate(pool._reference_counts) if count}
    wrong = sorted({block_id for block_id, _ in counted.items() ^ held.items()})
    assert not wrong, f"count of blocks {wrong}"
    assert pool.num_used == len(held), "free + used = total"
