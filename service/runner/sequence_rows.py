"""What the executor remembers of each sequence between iterations: one row in a few arrays.

Rows are numpy, so that a batch is gathered by one fancy index and no Python object is touched per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.iteration_plan import ScheduledSequence

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class TableChanges(NamedTuple):
    """Entries of the flattened block table to be written: places [C] int64, values [C] int32."""

    places: Int64Array
    values: Int32Array


def empty_changes(num: int) -> TableChanges:
    """Uninitialized room for `num` changes."""
    return TableChanges(np.empty(num, np.int64), np.empty(num, np.int32))


NO_CHANGES = empty_changes(0)


class SequenceRows:
    """sequence_id -> row. Engine thread.

    block_table [rows, max_blocks] int32; temperature, top_p [rows] fp32; top_k [rows] int32.
    asks_more [rows] bool: draws need more than these (service/runner/sampling_rows.py).
    Row 0 is nobody's: a batch that is padded names it. Grows when more sequences are alive than it was made for.
    Entries of the block table that change are noted until `take_changes`, for whoever keeps a copy of it.
    """

    def __init__(self, num_sequences: int, max_blocks: int) -> None:
        num_rows = num_sequences + 1
        self.block_table: Int32Array = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self.temperature: Float32Array = np.zeros(num_rows, dtype=np.float32)
        self.top_p: Float32Array = np.ones(num_rows, dtype=np.float32)
        self.top_k: Int32Array = np.zeros(num_rows, dtype=np.int32)
        self.asks_more: npt.NDArray[np.bool_] = np.zeros(num_rows, dtype=np.bool_)
        self._changed_from: Int64Array = np.full(num_rows, max_blocks, dtype=np.int64)
        self._changed_to: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self._row_of: dict[int, int] = {}
        self._free = list(range(1, num_rows))[::-1]

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def num_rows(self) -> int:
        return len(self.temperature)

    def update(self, scheduled: ScheduledSequence) -> int:
        """Take over what the plan says has changed; returns the sequence's row."""
        row = self._row_of.get(scheduled.sequence_id)
        if row is None:
            assert scheduled.table_start == 0, "a sequence new to the executor brings its whole block table"
            row = self._take_row(scheduled)
        if scheduled.block_ids:
            self.grow(row, scheduled.table_start, scheduled.block_ids)
        return row

    def grow(self, row: int, table_start: int, block_ids: Sequence[int]) -> None:
        """The row's block table is `block_ids` from index `table_start` on."""
        stop = table_start + len(block_ids)
        self.block_table[row, table_start:stop] = block_ids
        if table_start < self._changed_from[row]:
            self._changed_from[row] = table_start
        if stop > self._changed_to[row]:
            self._changed_to[row] = stop

    def update_all(self, scheduled: Sequence[ScheduledSequence]) -> Int64Array:
        """`update` of a whole plan; their rows. Sequences that grew by one block, as most do at block size 1
        (TokenAttention), are written together."""
        rows, grown, places, block_ids = [], [], [], []
        for item in scheduled:
            row = self._row_of.get(item.sequence_id)
            if row is None or len(item.block_ids) > 1:
                row = self.update(item)
            elif item.block_ids:
                grown.append(row)
                places.append(item.table_start)
                block_ids.append(item.block_ids[0])
            rows.append(row)
        if grown:
            at, place = np.array(grown), np.array(places)
            self.block_table[at, place] = block_ids
            self._changed_from[at] = np.minimum(self._changed_from[at], place)
            self._changed_to[at] = np.maximum(self._changed_to[at], place + 1)
        return np.array(rows, dtype=np.int64)

    def take_changes(self, num_rows: int) -> TableChanges:
        """The changes in the first `num_rows` rows since the last call. Some of the values may be as before."""
        rows = np.flatnonzero(self._changed_to[:num_rows])
        if not len(rows):
            return NO_CHANGES
        starts, stops = self._changed_from[rows], self._changed_to[rows]
        counts = stops - starts
        max_blocks = self.block_table.shape[1]
        first = rows * max_blocks + starts - (np.cumsum(counts) - counts)
        places = np.repeat(first, counts) + np.arange(counts.sum())
        self._changed_from[rows], self._changed_to[rows] = max_blocks, 0
        return TableChanges(places, self.block_table.reshape(-1)[places])

    def release(self, sequence_id: int) -> None:
        """Forget the sequence; one never seen is fine."""
        row = self._row_of.pop(sequence_id, None)
        if row is not None:
            self._free.append(row)

    def _take_row(self, scheduled: ScheduledSequence) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._row_of[scheduled.sequence_id] = row
        sampling = scheduled.sampling
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = min(sampling.top_k, np.iinfo(np.int32).max)
        self.asks_more[row] = not sampling.is_plain
        return row

    def _grow(self) -> None:
        old = len(self.temperature)
        max_blocks = self.block_table.shape[1]
        self.block_table = np.concatenate((self.block_table, np.zeros_like(self.block_table)))
        self._changed_from = np.concatenate((self._changed_from, np.full(old, max_blocks, dtype=np.int64)))
        self._changed_to = np.concatenate((self._changed_to, np.zeros(old, dtype=np.int64)))
        self.temperature = np.concatenate((self.temperature, np.zeros_like(self.temperature)))
        self.top_p = np.concatenate((self.top_p, np.ones_like(self.top_p)))
        self.top_k = np.concatenate((self.top_k, np.zeros_like(self.top_k)))
        self.asks_more = np.concatenate((self.asks_more, np.zeros_like(self.asks_more)))
        self._free.extend(range(old, 2 * old))
