"""Adapters on the device: their slots and KV blocks, which of them are in use, and which is evicted next.

Adapters live in blocks of the same pool as the KV cache (S-LoRA, Sheng et al. 2023, section 5: unified paging), so the
memory of an adapter that no running group uses can be reclaimed.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from weakref import WeakSet

from service.core.adapter import Adapter, AdapterLoad
from service.kvcache.block_pool import BlockPool


class _Resident(NamedTuple):
    slot: int
    block_ids: tuple[int, ...]


class AdapterSlots:
    """Slots 1 .. num_slots. Keeps ids and weak references only, so it keeps no Adapter alive. Engine thread.

    An adapter is resident if it has a slot and blocks, pinned while running groups use it, idle if it is resident and
    not pinned. Idle adapters stay until a slot or blocks are short; then the one idle for longest is evicted.

    An iteration in flight may still read the blocks of an adapter evicted meanwhile. That is safe: only later plans
    write to them, and the device runs plans in order.

    num_blocks: of all residents. num_idle_blocks: of the idle ones.
    """

    def __init__(self, num_slots: int, pool: BlockPool) -> None:
        self.num_slots = num_slots
        self.num_blocks = 0
        self.num_idle_blocks = 0
        self._pool = pool
        self._free_slots = list(range(num_slots, 0, -1))
        self._residents: dict[int, _Resident] = {}
        self._idle: dict[int, None] = {}  # ids, longest idle first
        self._num_users = Counter[int]()  # running groups per adapter id
        self._forgotten = WeakSet[Adapter]()  # removed as soon as they are idle
        self._num_evicted = 0

    def __len__(self) -> int:
        """Number of residents."""
        return len(self._residents)

    def slot_of(self, adapter: Adapter | None) -> int:
        """The slot of a resident adapter; 0 if `adapter` is None."""
        return 0 if adapter is None else self._residents[adapter.adapter_id].slot

    def is_resident(self, adapter: Adapter) -> bool:
        return adapter.adapter_id in self._residents

    def has_slot_for(self, adapter: Adapter) -> bool:
        """Whether it is resident, or a slot is free or can be freed for it."""
        return adapter.adapter_id in self._residents or len(self._num_users) < self.num_slots

    def num_blocks_to_pin(self, adapter: Adapter | None) -> int:
        """Blocks that a group with this adapter, if it starts now, makes unavailable to others; 0 if it is pinned."""
        return 0 if adapter is None or adapter.adapter_id in self._num_users else adapter.num_blocks

    @property
    def num_pinned_blocks(self) -> int:
        return self.num_blocks - self.num_idle_blocks

    def pin(self, adapter: Adapter | None) -> None:
        """One more running group uses it."""
        if adapter is None:
            return
        self._num_users[adapter.adapter_id] += 1
        if adapter.adapter_id in self._idle:
            del self._idle[adapter.adapter_id]
            self.num_idle_blocks -= adapter.num_blocks

    def unpin(self, adapter: Adapter | None) -> None:
        """One running group fewer uses it."""
        if adapter is None:
            return
        adapter_id = adapter.adapter_id
        self._num_users[adapter_id] -= 1
        if self._num_users[adapter_id] > 0:
            return
        del self._num_users[adapter_id]
        if adapter_id in self._residents:
            self._idle[adapter_id] = None
            self.num_idle_blocks += adapter.num_blocks
        if adapter in self._forgotten:
            self.remove_idle(adapter_id)

    def free_slot(self) -> None:
        """Make a slot free, evicting an idle adapter if necessary. The caller has checked `has_slot_for`."""
        if not self._free_slots:
            self._evict(next(iter(self._idle)))

    def free_blocks(self, num_blocks: int) -> None:
        """See `Borrower`: evict idle adapters until the pool has `num_blocks` free ones. The caller has checked that
        free blocks and those of idle adapters suffice."""
        while self._pool.num_free < num_blocks:
            self._evict(next(iter(self._idle)))

    def clear(self, block_ids: range) -> None:
        """Evict the idle adapters that have any of these blocks."""
        for adapter_id in [i for i in self._idle if any(b in block_ids for b in self._residents[i].block_ids)]:
            self._evict(adapter_id)

    def place(self, adapter: Adapter, block_ids: list[int]) -> AdapterLoad:
        """Give a pinned adapter a free slot, and these blocks, which the caller has allocated."""
        assert adapter.adapter_id in self._num_users
        assert len(block_ids) == adapter.num_blocks
        resident = _Resident(self._free_slots.pop(), tuple(block_ids))
        self._residents[adapter.adapter_id] = resident
        self.num_blocks += adapter.num_blocks
        return AdapterLoad(resident.slot, adapter.adapter_id, resident.block_ids)

    def forget(self, adapter: Adapter) -> None:
        """No new requests will use it: remove it now if it is idle, else as soon as it is."""
        self._forgotten.add(adapter)
        self.remove_idle(adapter.adapter_id)

    def remove_idle(self, adapter_id: int) -> None:
        """Remove it if it is idle. A request that uses it later has it loaded again."""
        if adapter_id in self._idle:
            self._remove(adapter_id)

    def take_num_evicted(self) -> int:
        """How many were evicted since the last call, for lack of a slot or blocks."""
        num_evicted, self._num_evicted = self._num_evicted, 0
        return num_evicted

    def held_blocks(self) -> list[int]:
        """Blocks of all residents."""
        return [block_id for resident in self._residents.values() for block_id in resident.block_ids]

    def pinned_blocks(self) -> list[int]:
        """Blocks of the residents that are not idle."""
        pinned = (resident for i, resident in self._residents.items() if i not in self._idle)
        return [block_id for resident in pinned for block_id in resident.block_ids]

    def _evict(self, adapter_id: int) -> None:
        self._remove(adapter_id)
        self._num_evicted += 1

    def _remove(self, adapter_id: int) -> None:
        """Remove an idle adapter."""
        slot, block_ids = self._residents.pop(adapter_id)
        del self._idle[adapter_id]
        self.num_blocks -= len(block_ids)
        self.num_idle_blocks -= len(block_ids)
        self._free_slots.append(slot)
        self._pool.release_empty(block_ids)
