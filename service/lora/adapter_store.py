"""Adapters in host memory, ready to be copied to the device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from service.core.adapter import Adapter
from service.lora.adapter_folder import AdapterWeights, read_adapter
from service.lora.adapter_layout import AdapterLayout, PackedAdapter
from service.lora.weights_file import read_weights


@dataclass(frozen=True, eq=False)
class HostAdapter(Adapter):
    """An adapter with its packed weights."""

    packed: PackedAdapter


class AdapterReader(Protocol):
    def read(self, name: str, folder: Path) -> HostAdapter:
        """Read the adapter in this folder, on every rank its part; the time is proportional to its size. Any thread.
        Raises AdapterError; ServerError if another rank could not take it."""
        ...


class AdapterStore:
    """Adapters by id. Weak references: an adapter is kept as long as its name is served or a live request has it. On a
    rank that serves no requests itself: from `take` to `drop`. Any thread.

    pinned: use pinned memory, so that the copy to the device needs no intermediate copy.
    """

    def __init__(self, layout: AdapterLayout, *, pinned: bool) -> None:
        self._layout = layout
        self._pinned = pinned
        self._ids = itertools.count(1)
        self._adapters: WeakValueDictionary[int, HostAdapter] = WeakValueDictionary()
        self._taken: dict[int, HostAdapter] = {}

    def read(self, name: str, folder: Path) -> HostAdapter:
        return self.keep(name, self.read_weights(folder))

    def read_weights(self, folder: Path) -> AdapterWeights:
        """Read the whole adapter, whatever part of it this rank needs. Raises AdapterError."""
        layout = self._layout
        return read_adapter(folder, layout.all_sites, layout.max_rank, layout.dtype)

    def keep(self, name: str, weights: AdapterWeights) -> HostAdapter:
        return self._packed(name, next(self._ids), weights)

    def take(self, adapter_id: int, file: Path) -> None:
        """Take over an adapter that rank 0 has read, numbered, and written to this file (weights_file.py)."""
        self._taken[adapter_id] = self._packed("", adapter_id, read_weights(file))

    def drop(self, adapter_id: int) -> None:
        """Let go of a taken adapter. Unknown ids are ignored."""
        self._taken.pop(adapter_id, None)

    @property
    def max_rank(self) -> int:
        return self._layout.max_rank

    @property
    def alignment(self) -> int:
        """Every row begins at a multiple of so many elements."""
        return self._layout.alignment

    def packed(self, adapter_id: int) -> PackedAdapter:
        """Packed weights of an adapter that is still in use."""
        return self._adapters[adapter_id].packed

    @property
    def num_bytes(self) -> int:
        """Bytes of all adapters' weights."""
        return sum(adapter.packed.blocks.nbytes for adapter in list(self._adapters.values()))

    @property
    def num_taken(self) -> int:
        return len(self._taken)

    def _packed(self, name: str, adapter_id: int, weights: AdapterWeights) -> HostAdapter:
        packed = self._layout.pack(weights, pinned=self._pinned)
        adapter = HostAdapter(name, adapter_id, len(packed.blocks), weights.digest, packed)
        self._adapters[adapter_id] = adapter
        return adapter
