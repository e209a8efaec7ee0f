"""Adapters shared with all ranks; the code that reads adapters by name does not know of ranks."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path

from service.distributed.adapter_lines import AdapterSharing
from service.lora.adapter_store import AdapterStore, HostAdapter
from service.lora.weights_file import write_weights


class SharedAdapters:
    """An AdapterReader. store: rank 0's own store."""

    def __init__(self, store: AdapterStore, lines: AdapterSharing) -> None:
        self._store = store
        self._lines = lines

    def read(self, name: str, folder: Path) -> HostAdapter:
        weights = self._store.read_weights(folder)
        adapter = self._store.keep(name, weights)
        # Dropped when rank 0's object is gone, also if a rank could not take it.
        weakref.finalize(adapter, self._lines.drop, adapter.adapter_id).atexit = False
        self._lines.share(adapter.adapter_id, partial(write_weights, weights=weights))
        return adapter
