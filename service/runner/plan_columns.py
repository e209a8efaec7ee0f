"""A plan as columns, of which batches are made: decodes, which are most of it, are columns already."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from service.core.iteration_plan import (
    PENDING_TOKEN_ID,
    SAMPLES,
    TOKEN_IDS,
    IterationPlan,
    Sample,
    ScheduledDecodes,
    ScheduledSequence,
)
from service.runner.batch_columns import Int64Array
from service.runner.sequence_rows import SequenceRows

_ROW, _START, _TABLE_START, _BLOCK_IDS = (
    itemgetter(ScheduledSequence._fields.index(name))
    for name in ("row", "num_computed_tokens", "table_start", "block_ids")
)
_SEED = itemgetter(Sample._fields.index("seed"))


class PlanColumns(NamedTuple):
    """S sequences with T tokens and N draws in the plan's order, all int64.

    rows [S]: of SequenceRows. num_computed_tokens [S]. query_lens [S]: tokens to compute. token_ids [T].
    num_samples [S]. seeds [N].
    """

    rows: Int64Array
    num_computed_tokens: Int64Array
    query_lens: Int64Array
    token_ids: Int64Array
    num_samples: Int64Array
    seeds: Int64Array

    @property
    def is_decode(self) -> bool:
        """Whether every sequence computes one token and draws one id."""
        return len(self.token_ids) == len(self.rows) and bool((self.num_samples == 1).all())

    def part(self, first: int, stop: int) -> PlanColumns:
        """Of the tokens from `first` until `stop` alone, which draw nothing. Sequences may be cut."""
        ends = np.cumsum(self.query_lens)
        starts = ends - self.query_lens
        inside = slice(np.searchsorted(ends, first, "right"), np.searchsorted(starts, stop, "left"))
        begins = np.maximum(starts[inside], first)
        query_lens = np.minimum(ends[inside], stop) - begins
        computed = self.num_computed_tokens[inside] + begins - starts[inside]
        none = np.empty(0, np.int64)
        return PlanColumns(
            self.rows[inside], computed, query_lens, self.token_ids[first:stop], np.zeros_like(query_lens), none
        )


def plan_columns(plan: IterationPlan, rows: SequenceRows) -> PlanColumns:
    """Of a plan that computes something. `rows` takes over what the plan says has changed."""
    parts = []
    if len(plan.decodes):
        parts.append(_of_decodes(plan.decodes, rows))
    if plan.scheduled:
        parts.append(_of_scheduled(plan.scheduled, rows))
    return parts[0] if len(parts) == 1 else PlanColumns(*map(np.concatenate, zip(*parts, strict=True)))


def grow_tables(decodes: ScheduledDecodes, rows: SequenceRows) -> None:
    """`rows` takes over the decodes' new blocks."""
    grown = decodes.grown
    if len(grown.places):
        rows.write_blocks(decodes.rows[grown.places], grown.table_starts, grown.block_ids)


def _of_decodes(decodes: ScheduledDecodes, rows: SequenceRows) -> PlanColumns:
    grow_tables(decodes, rows)
    return PlanColumns(
        decodes.rows,
        decodes.num_computed_tokens,
        decodes.num_new_tokens,
        np.full(decodes.num_tokens, PENDING_TOKEN_ID, np.int64),
        np.ones(len(decodes), np.int64),
        decodes.seeds,
    )


def _of_scheduled(scheduled: tuple[ScheduledSequence, ...], rows: SequenceRows) -> PlanColumns:
    num, ids, samples = len(scheduled), [*map(TOKEN_IDS, scheduled)], [*map(SAMPLES, scheduled)]
    at = np.fromiter(map(_ROW, scheduled), np.int64, num)
    rows.reserve(int(at.max()))
    changed = [item for item in scheduled if item.block_ids]
    if changed:
        _take_over(changed, rows)
    return PlanColumns(
        at,
        np.fromiter(map(_START, scheduled), np.int64, num),
        np.fromiter(map(len, ids), np.int64, num),
        np.fromiter(chain.from_iterable(ids), np.int64),
        np.fromiter(map(len, samples), np.int64, num),
        np.fromiter(map(_SEED, chain.from_iterable(samples)), np.int64),
    )


def _take_over(changed: list[ScheduledSequence], rows: SequenceRows) -> None:
    """Of sequences whose block table has changed: the changes, and what is remembered of those that may be new."""
    whole = [item for item in changed if item.table_start == 0]
    if whole:
        rows.remember(whole)
    blocks = [*map(_BLOCK_IDS, changed)]
    lens = np.fromiter(map(len, blocks), np.int64)
    behind = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
    rows.write_blocks(
        np.repeat(np.fromiter(map(_ROW, changed), np.int64), lens),
        np.repeat(np.fromiter(map(_TABLE_START, changed), np.int64), lens) + behind,
        np.fromiter(chain.from_iterable(blocks), np.int64),
    )
