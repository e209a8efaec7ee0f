"""The inputs of a step at fixed addresses: what a CUDA graph, or a CPU's recording, reads in each replay.

Most steps have the decodes of the step before, each one token further. Then the columns are advanced in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from service.core.iteration import ScheduledDecodes
from service.runner.batch_columns import BATCH_COLUMNS, Array, BatchColumns
from service.runner.device_copies import layout, part_of
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import NO_CHANGES, SequenceRows, TableChanges
from service.runner.step_inputs import PLAIN_FORM, StepForm, adapter_values, column_lengths, mixed_values, step_inputs


class GraphInputs:
    """Inputs of a step of at most `size`. Tokens are in the order of the batch, followed by padding, so the matrix
    products have the same shape wherever the border between decodes and prompts lies.

    block_table: DeviceBlockTable's tensor. step: the input tensors. fetch: copies what was written to the device; a
    step begins with it. table_places, table_values: entries that the step then writes to the block table, at most one
    per token and group of layers. version: of the ScheduledDecodes held; None if others are held, or none.
    num_adapters: how many adapters a step may use; 0: none, and there are no adapter columns.
    """

    def __init__(
        self,
        size: GraphSize,
        block_table: Tensor,
        block_size: int,
        columns: BatchColumns = BATCH_COLUMNS,
        num_adapters: int = 0,
        form: StepForm = PLAIN_FORM,
    ) -> None:
        lengths = column_lengths(size, columns, num_adapters)
        padding = {column.name: column.padded(length) for column, length in lengths.items()}
        self._fixed = fixed = FixedTensors(padding, block_table.device)
        self.step = step_inputs(fixed, size, block_table, block_size, columns, form, has_adapters=num_adapters > 0)
        self._size, self._num_adapters = size, num_adapters
        self.table_places, self.table_values = fixed["table_places"], fixed["table_values"]
        self.most_changes = size.num_tokens * len(columns.slots)
        self.fetch = fixed.fetch
        self.version: int | None = None
        self._held: dict[str, Array] = {}

    def fill_decodes(
        self, values: Mapping[str, Array], changes: TableChanges = NO_CHANGES, version: int | None = None
    ) -> None:
        """Write decodes alone, from `decode_columns`. version: given if they are a plan's ScheduledDecodes."""
        self._write({**values, **self._adapters(values)}, changes)
        self._held = self._fixed.written()
        self.version = version

    def aside(self) -> dict[str, Array]:
        """A copy of the decodes held now, for `bring_back`."""
        return {name: column.copy() for name, column in self._held.items()}

    def bring_back(self, aside: Mapping[str, Array], version: int) -> None:
        """Restore decodes after others were filled in. version: of these decodes."""
        self.version = None
        self._write(aside, NO_CHANGES)
        self._held = self._fixed.written()
        self.version = version

    def can_advance(self, decodes: ScheduledDecodes, aside: Mapping[str, Array] | None = None) -> bool:
        """Whether these are the decodes that were filled in, or those in `aside`, each one token further."""
        held = self._held if self.version == decodes.version else aside
        return held is not None and can_advance(held, decodes)

    def advance(
        self, decodes: ScheduledDecodes, rows: SequenceRows, block_size: int, changes: TableChanges = NO_CHANGES
    ) -> None:
        """Like `fill_decodes`, for decodes that `can_advance`. rows: already updated for them."""
        self._write({}, changes)
        self.version = None  # stays None if `advance` raises
        advance(self._held, rows, block_size)
        self.version = decodes.version

    def fill(self, batch: FlatBatch, changes: TableChanges = NO_CHANGES) -> None:
        """Write a batch that has a prompt, fits (`GraphSize.takes`) and `is_plain`."""
        values = mixed_values(batch, self._size)
        self._write({**values, **self._adapters(values)}, changes)

    def _adapters(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {} if self.step.adapters is None else adapter_values(values, self._size, self._num_adapters)

    def _write(self, values: Mapping[str, Array], changes: TableChanges) -> None:
        self._fixed.write({**values, "table_places": changes.places, "table_values": changes.values})


class FixedTensors:
    """Device tensors at fixed addresses, for a CUDA graph to read, each with an array on the host.

    The graph itself begins with `fetch`, the copy from host to device. So a replay is one call instead of two, and the
    device does all the copying.
    """

    def __init__(self, padding: Mapping[str, Array], device: torch.device) -> None:
        """padding: what the tensors hold where nothing was written."""
        offsets, num_bytes = layout({name: array.nbytes for name, array in padding.items()})
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._tensors = {name: part_of(self._buffer, offsets[name], array) for name, array in padding.items()}
        is_cuda = device.type == "cuda"
        self._staged = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
        self._fetched = torch.cuda.Event(blocking=True, external=True) if is_cuda else None
        memory = self._staged.numpy()
        self._host: Mapping[str, Array] = {
            name: memory[offsets[name] : offsets[name] + a.nbytes].view(a.dtype) for name, a in padding.items()
        }
        self._padding = padding
        self._num_written = {name: len(array) for name, array in padding.items()}
        self.write({name: array[:0] for name, array in padding.items()})
        self.fetch()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def write(self, values: Mapping[str, Array]) -> None:
        """Write each named tensor: its values, then padding (only where there were values before). Other tensors stay
        as they are. Waits until the previous write has been fetched, that is until the last step that reads these
        tensors has begun; that is long past if at most one step is launched ahead."""
        if self._fetched is not None and not self._fetched.query():
            self._fetched.synchronize()
        for name, array in values.items():
            host, num, num_before = self._host[name], len(array), self._num_written[name]
            host[:num] = array
            if num < num_before:
                host[num:num_before] = self._padding[name][num:num_before]
            self._num_written[name] = num

    def written(self) -> dict[str, Array]:
        """The values on the host, without padding. They may be changed in place between `write` and the next
        `fetch`."""
        return {name: self._host[name][:num] for name, num in self._num_written.items()}

    def fetch(self) -> None:
        """Copy what was written to the device, in stream order. A graph that captures this repeats it in each
        replay."""
        self._buffer.copy_(self._staged, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


def can_advance(held: Mapping[str, Array], decodes: ScheduledDecodes) -> bool:
    """Whether each decode computes one token, directly after the one in `held`. held: columns of the same sequences."""
    is_next = held["sample_positions"] == decodes.num_computed_tokens
    return bool(is_next.all()) and bool((decodes.num_new_tokens == 1).all())


def advance(held: Mapping[str, Array], rows: SequenceRows, block_size: int) -> None:
    """Advance `held`, the columns of decodes that are all pending, by one token in place. rows: already updated for
    these decodes. The block table is read only where a block begins; elsewhere slots are consecutive."""
    for name in ("positions", *rows.columns.slots, "decode_context_lens", "sample_positions"):
        np.add(held[name], 1, out=held[name])
    positions = held["positions"]
    (begins,) = (positions % block_size == 0).nonzero()
    if len(begins):
        for name, slots in rows.slots_at(held["decode_rows"][begins], positions[begins], block_size).items():
            held[name][begins] = slots
