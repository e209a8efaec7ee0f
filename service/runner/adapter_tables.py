"""Adapter tables on the device: for every linear of the model, where the weights of each slot lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from kernels.lora_tensors import LoraTables
from kernels.lora_tiles import lora_arrivals
from service.core.adapter import AdapterLoad
from service.layers.adapter_method import AdapterMethod, AdapterStep
from service.layers.linear import NamedLinear
from service.lora.adapter_store import AdapterStore
from service.runner.device_copies import Array, to_device
from service.runner.kv_storage import KvStorage


class AdapterTables:
    """Slots 1 to `num_slots`; slot 0 means no adapter. Engine thread.

    block_linears: as in CausalLM; their parts, in order, are the sites of the store's layout.
    """

    def __init__(
        self,
        block_linears: Sequence[Sequence[NamedLinear]],
        storage: KvStorage,
        store: AdapterStore,
        num_slots: int,
    ) -> None:
        self.num_slots = num_slots
        self._block_linears = block_linears
        self._storage = storage
        self._store = store
        num_sites = sum(len(each.names) for linears in block_linears for each in linears)
        device, slots = storage.blocks.device, num_slots + 1
        self._a_offsets = torch.zeros(slots, num_sites, store.max_rank, dtype=torch.int64, device=device)
        self._b_offsets = torch.zeros_like(self._a_offsets)
        self._ranks = torch.zeros(slots, num_sites, dtype=torch.int32, device=device)
        self._scales = torch.zeros(slots, num_sites, dtype=torch.float32, device=device)
        self._arrivals = lora_arrivals(num_slots, device)

    @staticmethod
    def num_bytes(num_sites: int, num_slots: int, max_rank: int) -> int:
        return (num_slots + 1) * num_sites * (2 * max_rank * torch.int64.itemsize + 8)

    def install(self, step: AdapterStep) -> None:
        """From now on each linear adds the adapters' parts to what its previous method computes."""
        first, last = 0, len(self._block_linears) - 1
        for index, linears in enumerate(self._block_linears):
            for names, linear, reads_rows in linears:
                sites = slice(first, first + len(names))
                tables = LoraTables(
                    self._storage.blocks.view(-1),
                    self._a_offsets[:, sites],
                    self._b_offsets[:, sites],
                    self._ranks[:, sites],
                    self._scales[:, sites],
                    linear.out_features,
                    self._store.alignment,
                    self._arrivals,
                )
                is_narrow = reads_rows and index == last
                linear.extend(partial(AdapterMethod, tables=tables, step=step, reads_rows=is_narrow))
                first += len(names)

    def load(self, loads: Sequence[AdapterLoad]) -> None:
        """Copy the adapters to their blocks and point their slots at these. Launched, not awaited: earlier steps, which
        may use the slots' old adapters, come first on the device."""
        for slot, adapter_id, block_ids in loads:
            packed = self._store.packed(adapter_id)
            for block_id, values in zip(block_ids, packed.blocks, strict=True):
                self._storage.blocks[block_id].view(-1).copy_(values, non_blocking=True)
            places = np.stack((packed.a_places, packed.b_places))
            offsets = packed.offsets(places, block_ids)
            rows: dict[str, Array] = {"offsets": offsets, "ranks": packed.ranks, "scales": packed.scales}
            there = to_device(rows, self._ranks.device)
            self._a_offsets[slot], self._b_offsets[slot] = there["offsets"].unbind()
            self._ranks[slot], self._scales[slot] = there["ranks"], there["scales"]
