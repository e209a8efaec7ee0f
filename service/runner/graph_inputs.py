"""The inputs of a step at fixed places on the device: what a CUDA graph was captured with and reads again, and a CPU's
recording.

Most steps have the decodes of the one before, one token further: then the columns are advanced where they are.
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
from service.runner.step_inputs import adapter_values, column_lengths, mixed_values, step_inputs


class GraphInputs:
    """Inputs of a step of at most `size`. Tokens stand in the order of the batch, with padding behind them: so the
    matrix products have the same shape wherever the border between decodes and prompts lies.

    block_table: DeviceBlockTable's tensor. step: the tensors. fetch: with which the step begins. table_places,
    table_values: what it has to write to the block table then, one entry at most of each group for a token.
    version: of the ScheduledDecodes that it holds; None if it holds others, or none. num_adapters: that a step may
    have, and then the columns are those that tell of them; 0: the steps have none. split_len: of attention
    (`RowInvariance`). received: as StepInputs has it. all_as_prompts: of decodes alone, as of `attention_inputs`.
    reads_all: the last layer's output is wanted of all tokens, not only of those whose logits are.
    """

    def __init__(
        self,
        size: GraphSize,
        block_table: Tensor,
        block_size: int,
        columns: BatchColumns = BATCH_COLUMNS,
        num_adapters: int = 0,
        split_len: int | None = None,
        received: Tensor | None = None,
        *,
        all_as_prompts: bool = False,
        reads_all: bool = False,
    ) -> None:
        lengths = column_lengths(size, columns, num_adapters)
        padding = {column.name: column.padded(length) for column, length in lengths.items()}
        self._fixed = fixed = FixedTensors(padding, block_table.device)
        self.step = step_inputs(
            fixed,
            size,
            block_table,
            block_size,
            columns,
            has_adapters=num_adapters > 0,
            split_len=split_len,
            received=received,
            all_as_prompts=all_as_prompts,
            reads_all=reads_all,
        )
        self._size, self._num_adapters = size, num_adapters
        self.table_places, self.table_values = fixed["table_places"], fixed["table_values"]
        self.most_changes = size.num_tokens * len(columns.slots)
        self.fetch = fixed.fetch
        self.version: int | None = None
        self._held: dict[str, Array] = {}

    def fill_decodes(
        self, values: Mapping[str, Array], changes: TableChanges = NO_CHANGES, version: int | None = None
    ) -> None:
        """Decodes alone, by `decode_columns`. version: of a plan's ScheduledDecodes if they are these."""
        self._write({**values, **self._adapters(values)}, changes)
        self._held = self._fixed.written()
        self.version = version

    def aside(self) -> dict[str, Array]:
        """A copy of the decodes that it holds, for `bring_back`."""
        return {name: column.copy() for name, column in self._held.items()}

    def bring_back(self, aside: Mapping[str, Array], version: int) -> None:
        """Others were filled in meanwhile. version: of these decodes."""
        self.version = None
        self._write(aside, NO_CHANGES)
        self._held = self._fixed.written()
        self.version = version

    def can_advance(self, decodes: ScheduledDecodes, aside: Mapping[str, Array] | None = None) -> bool:
        """Whether they are the decodes that were filled in, or that lie aside, each one token further."""
        held = self._held if self.version == decodes.version else aside
        return held is not None and can_advance(held, decodes)

    def advance(
        self, decodes: ScheduledDecodes, rows: SequenceRows, block_size: int, changes: TableChanges = NO_CHANGES
    ) -> None:
        """As `fill_decodes`, of decodes for which it `can_advance`. rows: up to date with them."""
        self._write({}, changes)
        self.version = None  # unless all of it is done
        advance(self._held, rows, block_size)
        self.version = decodes.version

    def fill(self, batch: FlatBatch, changes: TableChanges = NO_CHANGES) -> None:
        """A batch that there is room for (`GraphSize.takes`), that has a prompt, and that `is_plain`."""
        values = mixed_values(batch, self._size)
        self._write({**values, **self._adapters(values)}, changes)

    def _adapters(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {} if self.step.adapters is None else adapter_values(values, self._size, self._num_adapters)

    def _write(self, values: Mapping[str, Array], changes: TableChanges) -> None:
        self._fixed.write({**values, "table_places": changes.places, "table_values": changes.values})


class FixedTensors:
    """Tensors at one place on the device for good, and an array for each on the host, too: what a CUDA graph reads.

    The graph itself begins with `fetch`. So to launch it is one call instead of two, and nothing is copied but by the
    device.
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
        """Each becomes values and padding behind them, which is written only where there were values before; tensors
        that are not named stay. Waits until the writes before have been fetched: for the last step to begin that reads
        these tensors, as it has long done where no more than one step is launched behind another."""
        if self._fetched is not None and not self._fetched.query():
            self._fetched.synchronize()
        for name, array in values.items():
            host, num, num_before = self._host[name], len(array), self._num_written[name]
            host[:num] = array
            if num < num_before:
                host[num:num_before] = self._padding[name][num:num_before]
            self._num_written[name] = num

    def written(self) -> dict[str, Array]:
        """The values on the host, without padding. They may be changed in place between a `write` and the next
        `fetch`."""
        return {name: self._host[name][:num] for name, num in self._num_written.items()}

    def fetch(self) -> None:
        """The tensors become what was written when the device comes to it. A graph that captures this does it in each
        replay."""
        self._buffer.copy_(self._staged, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


def can_advance(held: Mapping[str, Array], decodes: ScheduledDecodes) -> bool:
    """Whether each decode computes one token, right behind the one in `held`. held: the same sequences' columns."""
    is_next = held["sample_positions"] == decodes.num_computed_tokens
    return bool(is_next.all()) and bool((decodes.num_new_tokens == 1).all())


def advance(held: Mapping[str, Array], rows: SequenceRows, block_size: int) -> None:
    """`held`, of decodes that are all pending, becomes in place the columns of the same decodes one token further.
    rows: up to date with these. The block table is read where a block begins only: elsewhere slots follow
    each other."""
    for name in ("positions", *rows.columns.slots, "decode_context_lens", "sample_positions"):
        np.add(held[name], 1, out=held[name])
    positions = held["positions"]
    (begins,) = (positions % block_size == 0).nonzero()
    if len(begins):
        for name, slots in rows.slots_at(held["decode_rows"][begins], positions[begins], block_size).items():
            held[name][begins] = slots
