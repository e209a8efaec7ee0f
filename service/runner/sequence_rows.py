"""What the executor remembers of each sequence between iterations: one row in each of a few arrays.

Rows are numpy arrays, so a batch is gathered with one fancy index and no Python object is touched per token. The device
has a copy of the block table and is sent only the entries that changed (most steps change one row in 16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from service.core.iteration import ScheduledDecodes
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.batch_columns import BATCH_COLUMNS, Array, BatchColumns, Int32Array, Int64Array, Per
from service.runner.device_copies import to_device


class TableChanges(NamedTuple):
    """Entries to write to the flattened block table: places [C] int64, values [C] int32. A place that occurs twice has
    the same value twice."""

    places: Int64Array
    values: Int32Array


NO_CHANGES = TableChanges(np.empty(0, np.int64), np.empty(0, np.int32))


class SequenceRows:
    """block_table [rows, max_blocks] int32, and by name the columns that come from sequences. Engine thread.

    With several groups of layers, a row has max_blocks entries of the first group, then those of the next. The
    scheduler assigns rows from 1 on; row 0 is padding's. Changed entries of the block table are collected until
    `take_changes`, for the owner of a copy.
    """

    def __init__(self, num_sequences: int, max_blocks: int, columns: BatchColumns = BATCH_COLUMNS) -> None:
        self.columns = columns
        self._num_groups, self._max_blocks = len(columns.slots), max_blocks
        self.block_table: Int32Array = np.zeros((num_sequences + 1, self._num_groups * max_blocks), dtype=np.int32)
        self._columns = {column.name: column.padded(num_sequences + 1) for column in columns if column.of is not None}
        self._gathered = {kind: tuple(c.name for c in columns.per(kind) if c.of is not None) for kind in Per}
        self._changed: list[Int64Array] | None = []  # places; None: too many to note each
        self._num_changed = 0

    @property
    def num_rows(self) -> int:
        return len(self.block_table)

    def __getitem__(self, name: str) -> Array:
        """[rows]: a column that comes from sequences."""
        return self._columns[name]

    def __contains__(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self._columns

    def gather(self, kind: Per, rows: Int64Array) -> dict[str, Array]:
        """The columns remembered per `kind`, for these rows."""
        return {name: self._columns[name][rows] for name in self._gathered[kind]}

    def reserve(self, row: int) -> None:
        """Make room for this row: if there is none, double the number of rows until there is."""
        if row < self.num_rows:
            return
        while row >= self.num_rows:
            self.block_table = np.concatenate((self.block_table, np.zeros_like(self.block_table)))
        for column in self.columns:
            if column.of is not None:
                old = self._columns[column.name]
                self._columns[column.name] = np.concatenate((old, column.padded(self.num_rows - len(old))))

    def remember(self, scheduled: Sequence[ScheduledSequence]) -> None:
        """From now on these sequences own their rows: write their columns there."""
        for name, of in self.columns.remembered.items():
            column = self._columns[name]
            for item in scheduled:  # mostly one: an assignment by a list of rows costs ten times as much
                column[item.row] = of(item)

    def write_blocks(self, rows: Int64Array, indexes: Int64Array, block_ids: Int64Array) -> None:
        """[C] each: write `block_ids` into the block tables of `rows` at `indexes`. An index counts units, and within a
        unit the groups: unit * num_groups + group (core/layer_groups.py)."""
        if self._num_groups > 1:
            units, groups = np.divmod(indexes, self._num_groups)
            indexes = groups * self._max_blocks + units
        places = rows * self.block_table.shape[1] + indexes
        self.block_table.reshape(-1)[places] = block_ids
        if self._changed is not None:
            self._changed.append(places)
            self._num_changed += len(places)
            if self._num_changed > self.block_table.size:
                self._changed = None

    def grow_tables(self, decodes: ScheduledDecodes) -> None:
        """Add the decodes' new blocks to the block table."""
        grown = decodes.grown
        if len(grown.places):
            self.write_blocks(decodes.rows[grown.places], grown.table_starts, grown.block_ids)

    def slots_at(self, rows: Int64Array, positions: Int64Array, block_size: int) -> dict[str, Array]:
        """[T] each, for every group of layers: the cache slot of the token at this position of this row."""
        units, offsets = np.divmod(positions, block_size)
        slots = {}
        for group, name in enumerate(self.columns.slots):
            block_ids = self.block_table[rows, group * self._max_blocks + units]
            slots[name] = block_ids.astype(np.int64) * block_size + offsets
        return slots

    def first_blocks(self, rows: Int64Array, num_units: int) -> Int32Array:
        """[S, groups * num_units]: the blocks of these rows' first units, group by group."""
        if self._num_groups == 1:
            return self.block_table[rows, :num_units]
        by_group = self.block_table.reshape(self.num_rows, self._num_groups, self._max_blocks)
        return by_group[rows, :, :num_units].reshape(len(rows), -1)

    def take_changes(self, num_rows: int) -> TableChanges:
        """The changes to the first `num_rows` rows since the last call. Some of the values may be as before."""
        changed, self._changed, self._num_changed = self._changed, [], 0
        if changed == []:
            return NO_CHANGES
        end = num_rows * self.block_table.shape[1]
        if changed is None:
            places = np.arange(end)
        else:
            places = changed[0] if len(changed) == 1 else np.concatenate(changed)
            if num_rows < self.num_rows:
                places = places[places < end]
        return TableChanges(places, self.block_table.reshape(-1)[places])

    def note_all(self) -> None:
        """Count all entries as changed, because a copy may have missed changes that were taken."""
        self._changed = None


class DeviceBlockTable:
    """A copy of SequenceRows' block table. tensor [rows, max_blocks] int32, at one address for good.

    It has as many rows as there were when it was made; rows added later are not in it.
    """

    def __init__(self, rows: SequenceRows, device: torch.device) -> None:
        self._rows = rows
        self._num_rows = rows.num_rows
        self.tensor = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)

    @staticmethod
    def num_bytes(num_rows: int, max_blocks: int) -> int:
        return num_rows * max_blocks * torch.int32.itemsize

    @property
    def is_complete(self) -> bool:
        return self._rows.num_rows == self._num_rows

    def take_changes(self, most: int) -> TableChanges:
        """The changes that the next step has to `write`. If there are more than `most`, they are written at once and
        none are returned."""
        changes = self._rows.take_changes(self._num_rows)
        if len(changes.places) <= most:
            return changes
        there = to_device(changes._asdict(), self.tensor.device)
        self.write(there["places"], there["values"])
        return NO_CHANGES

    def write(self, places: Tensor, values: Tensor) -> None:
        """places, values: TableChanges on the device."""
        self.tensor.view(-1).scatter_(0, places, values)
