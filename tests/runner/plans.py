"""Hand-made plans as the columns that batches are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.iteration import GrownTables, IterationPlan, ScheduledDecodes
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.selective_batching import FlatBatch, PlanColumns, flatten, plan_columns
from service.runner.sequence_rows import SequenceRows


def planned(scheduled: Sequence[ScheduledSequence], rows: SequenceRows) -> PlanColumns:
    return plan_columns(IterationPlan(tuple(scheduled)), rows)


def flat(scheduled: Sequence[ScheduledSequence], rows: SequenceRows, block_size: int) -> FlatBatch:
    return flatten(planned(scheduled, rows), rows, block_size)


def as_decodes(scheduled: Sequence[ScheduledSequence], version: int) -> ScheduledDecodes:
    """Sequences that compute one token and draw one id each, as the columns that a plan has of steady decodes."""
    grown = [
        (place, item.table_start + i, block_id)
        for place, item in enumerate(scheduled)
        for i, block_id in enumerate(item.block_ids)
    ]
    return ScheduledDecodes(
        version,
        np.array([item.sequence_id for item in scheduled], np.int64),
        np.array([item.row for item in scheduled], np.int64),
        np.array([item.samples[0].seed for item in scheduled], np.int64),
        np.array([item.num_computed_tokens for item in scheduled], np.int64),
        np.array([len(item.token_ids) for item in scheduled], np.int64),
        sum(len(item.token_ids) for item in scheduled),
        GrownTables(*np.array(grown, np.int64).reshape(-1, 3).T),
    )
