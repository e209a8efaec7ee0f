"""The commonest iteration, in which every sequence computes one token and draws one id, as one row a sequence.

Host side and numpy only, like the general form in selective_batching.py; but rows stand in the plan's order, a row's
blocks are named by its row in the block table, and the number of rows can be padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence, SharesGoingOn
from service.runner.sequence_rows import Float32Array, Int32Array, Int64Array, SequenceRows


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
    return all(len(s.token_ids) == 1 == len(s.samples) for s in scheduled)


def decode_rows(scheduled: Sequence[ScheduledSequence], rows: SequenceRows, block_size: int) -> DecodeRows:
    """The rows of a plan that `is_decode`. `rows` is brought up to date with the plan."""
    row = rows.update_all(scheduled)
    positions = np.array([s.num_computed_tokens for s in scheduled], dtype=np.int64)
    blocks = rows.block_table[row, positions // block_size].astype(np.int64)
    return DecodeRows(
        token_ids=np.array([s.token_ids[0] for s in scheduled], dtype=np.int64),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        rows=row,
        context_lens=(positions + 1).astype(np.int32),
        temperature=rows.temperature[row],
        top_p=rows.top_p[row],
        top_k=rows.top_k[row],
        seeds=np.array([s.samples[0].seed for s in scheduled], dtype=np.int64),
        sample_positions=positions + 1,
    )


def rows_going_on(before: DecodeRows, shares: SharesGoingOn, rows: SequenceRows, block_size: int) -> DecodeRows:
    """The rows of a plan that goes on from one whose rows are `before`. What no token changes is the same array."""
    for place, (table_start, block_ids) in shares.grown.items():
        rows.grow(before.rows[place], table_start, block_ids)
    positions = before.positions + 1
    blocks = rows.block_table[before.rows, positions // block_size].astype(np.int64)
    return before._replace(
        token_ids=np.full_like(before.token_ids, PENDING_TOKEN_ID),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        context_lens=before.context_lens + 1,
        sample_positions=before.sample_positions + 1,
    )


def pad_into(padded: DecodeRows, values: DecodeRows, before: DecodeRows | None = None) -> None:
    """Write the values to the first rows and PADDING to the others. before: what `padded` holds already; of its arrays
    those are not written that are the values' own."""
    num_seqs = len(values.rows)
    before = before or empty_rows(0)
    rows: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Any]]
    rows = zip(padded, values, before, PADDING, strict=True)
    for target, value, held, filler in rows:
        if value is not held:
            target[:num_seqs] = value
            target[num_seqs:] = filler


def empty_rows(num_rows: int) -> DecodeRows:
    """Rows without values, in the types that every DecodeRows has."""
    types: tuple[npt.DTypeLike, ...] = (
        np.int64, np.int64, np.int64, np.int64, np.int32, np.float32, np.float32, np.int32, np.int64, np.int64,
    )  # fmt: skip
    arrays: list[npt.NDArray[Any]] = [np.empty(num_rows, dtype=dtype) for dtype in types]
    return DecodeRows(*arrays)
