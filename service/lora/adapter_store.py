"""The adapters in the host's memory, ready to be copied to the device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from service.core.adapter import Adapter
from service.lora.adapter_folder import read_adapter
from service.lora.adapter_layout import AdapterLayout, PackedAdapter


@dataclass(frozen=True, eq=False)
class HostAdapter(Adapter):
    """An adapter with its weights."""

    packed: PackedAdapter


class AdapterStore:
    """Adapters by id, as long as somebody has them: who serves the name, or a request that has not ended. Any thread.

    pinned: the copy to the device then needs no copy on the host.
    """

    def __init__(self, layout: AdapterLayout, *, pinned: bool) -> None:
        self._layout = layout
        self._pinned = pinned
        self._ids = itertools.count(1)
        self._adapters: WeakValueDictionary[int, HostAdapter] = WeakValueDictionary()

    def read(self, name: str, folder: Path) -> HostAdapter:
        """Read an adapter from its folder; takes as long as its bytes. Raises AdapterError."""
        layout = self._layout
        weights = read_adapter(folder, layout.sites, layout.max_rank, layout.dtype)
        packed = layout.pack(weights, pinned=self._pinned)
        adapter = HostAdapter(name, next(self._ids), len(packed.blocks), weights.digest, packed)
        self._adapters[adapter.adapter_id] = adapter
        return adapter

    @property
    def max_rank(self) -> int:
        return self._layout.max_rank

    @property
    def alignment(self) -> int:
        """Every row begins at a multiple of so many elements."""
        return self._layout.alignment

    def packed(self, adapter_id: int) -> PackedAdapter:
        """Of an adapter that somebody has."""
        return self._adapters[adapter_id].packed

    @property
    def num_bytes(self) -> int:
        """Of the weights of all adapters."""
        return sum(adapter.packed.blocks.nbytes for adapter in list(self._adapters.values()))
