"""The commonest iteration, in which every sequence computes one token and draws one id, as one row a sequence.

Host side and numpy only, like the general form in selective_batching.py; but rows stand in the plan's order, a row's
blocks are named by its row in the block table, and the number of rows can be padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence, SharesGoingOn, parts_of
from service.runner.sequence_rows import Float32Array, Int32Array, Int64Array, SequenceRows
from service.runner.share_columns import share_columns


class DecodeRows(NamedTuple):
    """N sequences, all arrays [N].

    rows: of the block table. context_lens: tokens in the cache after this iteration's write.
    """

    token_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    rows: Int64Array
    context_lens: Int32Array
    temperature: Float32Array
    top_p: Float32Array
    top_k: Int32Array
    seeds: Int64Array
    sample_positions: Int64Array


PADDING = DecodeRows(*(np.array(value) for value in (0, 0, -1, 0, 0, 0.0, 1.0, 0, 0, 0)))
"""What a row without a sequence holds: the unused row of the block table, no context, no slot to write. It draws the
largest logit, which is ignored."""


def is_decode(scheduled: Sequence[ScheduledSequence]) -> bool:
    """Whether every sequence computes one token and draws one id."""
    _, apart = parts_of(scheduled)
    return all(len(s.token_ids) == 1 == len(s.samples) for s in reversed(apart))  # prompts mostly stand last


def decode_rows(scheduled: Sequence[ScheduledSequence], rows: SequenceRows, block_size: int) -> DecodeRows:
    """The rows of a plan that `is_decode`. `rows` is brought up to date with the plan."""
    row, positions, _, token_ids, _, seeds = share_columns(scheduled, rows)
    blocks = rows.block_table[row, positions // block_size].astype(np.int64)
    return DecodeRows(
        token_ids=token_ids,
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        rows=row,
        context_lens=(positions + 1).astype(np.int32),
        temperature=rows.temperature[row],
        top_p=rows.top_p[row],
        top_k=rows.top_k[row],
        seeds=seeds,
        sample_positions=positions + 1,
    )


def go_on(held: DecodeRows, shares: SharesGoingOn, rows: SequenceRows, block_size: int) -> None:
    """`held`, the rows of some plan, become in place those of the plan that goes on from it. `rows` is brought up to
    date with that one. The block table is read where a block begins only: elsewhere slots follow each other."""
    rows.grow_each(held.rows, shares.grown)
    held.token_ids.fill(PENDING_TOKEN_ID)
    for array in (held.positions, held.slots, held.sample_positions):
        np.add(array, 1, out=array)
    np.add(held.context_lens, 1, out=held.context_lens)
    (begins,) = (held.positions % block_size == 0).nonzero()
    if len(begins):
        blocks = rows.block_table[held.rows[begins], held.positions[begins] // block_size]
        held.slots[begins] = blocks.astype(np.int64) * block_size


def first_rows(rows: DecodeRows, num: int) -> DecodeRows:
    """The first `num`, in the same memory."""
    arrays: Iterable[npt.NDArray[Any]] = rows
    return DecodeRows(*(array[:num] for array in arrays))


def pad_into(padded: DecodeRows, values: DecodeRows) -> None:
    """Write the values to the first rows and PADDING to the others."""
    num_seqs = len(values.rows)
    rows: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any], Any]] = zip(padded, values, PADDING, strict=True)
    for target, value, filler in rows:
        target[:num_seqs] = value
        target[num_seqs:] = filler


def empty_rows(num_rows: int) -> DecodeRows:
    """Rows without values, in the types that every DecodeRows has."""
    types: tuple[npt.DTypeLike, ...] = (
        np.int64, np.int64, np.int64, np.int64, np.int32, np.float32, np.float32, np.int32, np.int64, np.int64,
    )  # fmt: skip
    arrays: list[npt.NDArray[Any]] = [np.empty(num_rows, dtype=dtype) for dtype in types]
    return DecodeRows(*arrays)
