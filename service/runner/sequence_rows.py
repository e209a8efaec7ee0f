"""What the executor remembers of each sequence between iterations: one row in a few arrays.

Rows are numpy, so that a batch is gathered by one fancy index and no Python object is touched per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.iteration_plan import BLOCK_IDS, SEQUENCE_ID, LockstepShares, ScheduledSequence

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class TableChanges(NamedTuple):
    """Entries of the flattened block table to be written: places [C] int64, values [C] int32. A place that is there
    twice has the same value twice."""

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
        self._changed: list[Int64Array] | None = []  # places; None: too many to note each
        self._num_changed = 0
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
        first = row * self.block_table.shape[1]
        self._note(np.arange(first + table_start, first + stop))

    def grow_each(self, rows: Int64Array, grown: Mapping[int, tuple[int, Sequence[int]]]) -> None:
        """grown: place among the rows -> what `grow` takes for that row. No row stands at two places."""
        if not grown:
            return
        at = rows[list(grown)]
        starts, tables = zip(*grown.values(), strict=True)
        if set(map(len, tables)) == {1}:
            self._grow_by_one(at, starts, [block_ids[0] for block_ids in tables])
            return
        for row, table_start, block_ids in zip(at.tolist(), starts, tables, strict=True):
            self.grow(row, table_start, block_ids)

    def update_lockstep(self, shares: LockstepShares) -> Int64Array:
        """`update` of shares in lockstep, whose sequences all have a row; the rows."""
        rows = np.fromiter(map(self._row_of.__getitem__, shares.sequence_ids), np.int64, len(shares))
        self.grow_each(rows, shares.grown)
        return rows

    def update_all(self, scheduled: Sequence[ScheduledSequence]) -> Int64Array:
        """`update` of a whole plan; their rows. Sequences that grew by one block, as most do at block size 1
        (TokenAttention), are written together."""
        rows = [*map(self._row_of.get, map(SEQUENCE_ID, scheduled))]
        grown, places, block_ids = [], [], []
        for index, (row, changed) in enumerate(zip(rows, map(BLOCK_IDS, scheduled), strict=True)):
            if row is not None and not changed:  # as for nearly all
                continue
            if row is None or len(changed) > 1:
                rows[index] = self.update(scheduled[index])
            else:
                grown.append(row)
                places.append(scheduled[index].table_start)
                block_ids.append(changed[0])
        if grown:
            self._grow_by_one(np.array(grown), places, block_ids)
        return np.array(rows, dtype=np.int64)

    def take_changes(self, num_rows: int) -> TableChanges:
        """The changes in the first `num_rows` rows since the last call. Some of the values may be as before."""
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
        """A copy may have missed what was taken: all entries count as changed."""
        self._changed = None

    def release(self, sequence_id: int) -> None:
        """Forget the sequence; one never seen is fine."""
        row = self._row_of.pop(sequence_id, None)
        if row is not None:
            self._free.append(row)

    def _grow_by_one(self, rows: Int64Array, table_starts: Sequence[int], block_ids: Sequence[int]) -> None:
        """`grow` of these rows by a block each."""
        places = rows * self.block_table.shape[1] + table_starts
        self.block_table.reshape(-1)[places] = block_ids
        self._note(places)

    def _note(self, places: Int64Array) -> None:
        if self._changed is not None:
            self._changed.append(places)
            self._num_changed += len(places)
            if self._num_changed > self.block_table.size:
                self._changed = None

    def _take_row(self, scheduled: ScheduledSequence) -> int:
        if not self._free:
            self._add_rows()
        row = self._free.pop()
        self._row_of[scheduled.sequence_id] = row
        sampling = scheduled.sampling
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = min(sampling.top_k, np.iinfo(np.int32).max)
        self.asks_more[row] = not sampling.is_plain
        return row

    def _add_rows(self) -> None:
        """Twice as many from now on."""
        old = len(self.temperature)
        self.block_table = np.concatenate((self.block_table, np.zeros_like(self.block_table)))
        self.temperature = np.concatenate((self.temperature, np.zeros_like(self.temperature)))
        self.top_p = np.concatenate((self.top_p, np.ones_like(self.top_p)))
        self.top_k = np.concatenate((self.top_k, np.zeros_like(self.top_k)))
        self.asks_more = np.concatenate((self.asks_more, np.zeros_like(self.asks_more)))
        self._free.extend(range(old, 2 * old))
