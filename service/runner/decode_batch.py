"""The commonest iteration, in which every sequence computes one token and draws one id, as one row a sequence.

Host side and numpy only, like the general form in selective_batching.py; but rows stand in the plan's order, a row's
blocks are named by its row in the block table, and tokens, sequences and draws are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.core.iteration_plan import ScheduledDecodes
from service.runner.batch_columns import Array, Per
from service.runner.plan_columns import PlanColumns
from service.runner.sequence_rows import SequenceRows

DECODE_KINDS = (Per.TOKEN, Per.SEQUENCE, Per.DRAW)
"""Of the columns that such a batch has."""


def decode_columns(planned: PlanColumns, rows: SequenceRows, block_size: int) -> dict[str, Array]:
    """The batch's columns, by name, of a plan that `is_decode`. rows: up to date with it."""
    row, positions = planned.rows, planned.num_computed_tokens
    blocks = rows.block_table[row, positions // block_size].astype(np.int64)
    columns = {
        "token_ids": planned.token_ids,
        "positions": positions,
        "slot_mapping": blocks * block_size + positions % block_size,
        "rows": row,
        "context_lens": (positions + 1).astype(np.int32),
        "seeds": planned.seeds,
        "sample_positions": positions + 1,
    }
    for kind in DECODE_KINDS:
        columns.update(rows.gather(kind, row))
    return columns


def can_advance(held: Mapping[str, Array], decodes: ScheduledDecodes) -> bool:
    """Whether each decode computes one token, right behind the one in `held`. held: the same sequences' columns."""
    is_next = held["sample_positions"] == decodes.num_computed_tokens
    return bool(is_next.all()) and bool((decodes.num_new_tokens == 1).all())


def advance(held: Mapping[str, Array], rows: SequenceRows, block_size: int) -> None:
    """`held`, of decodes that are all pending, becomes in place the columns of the same decodes one token further.
    rows: up to date with these. The block table is read where a block begins only: elsewhere slots follow
    each other."""
    for name in ("positions", "slot_mapping", "context_lens", "sample_positions"):
        np.add(held[name], 1, out=held[name])
    positions = held["positions"]
    (begins,) = (positions % block_size == 0).nonzero()
    if len(begins):
        blocks = rows.block_table[held["rows"][begins], positions[begins] // block_size]
        held["slot_mapping"][begins] = blocks.astype(np.int64) * block_size
