"""The shares of a plan as columns, of which batches are made: decodes in lockstep, who are most of them, get no object
each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from service.core.iteration_plan import PENDING_TOKEN_ID, SAMPLES, SEED, START, TOKEN_IDS, ScheduledSequence, parts_of
from service.runner.sequence_rows import Int64Array, SequenceRows


class ShareColumns(NamedTuple):
    """S sequences with T tokens and N draws in the plan's order, all int64.

    rows [S]: in SequenceRows. starts [S]: num_computed_tokens. query_lens [S]: tokens to compute. token_ids [T].
    num_samples [S]. seeds [N].
    """

    rows: Int64Array
    starts: Int64Array
    query_lens: Int64Array
    token_ids: Int64Array
    num_samples: Int64Array
    seeds: Int64Array


def share_columns(scheduled: Sequence[ScheduledSequence], rows: SequenceRows) -> ShareColumns:
    """`rows` is brought up to date with the plan."""
    in_lockstep, apart = parts_of(scheduled)
    if not in_lockstep:
        return _apart(apart, rows)
    num = len(in_lockstep)
    ones = np.ones(num, np.int64)
    columns = ShareColumns(
        rows.update_lockstep(in_lockstep),
        np.array(in_lockstep.starts, np.int64),
        ones,
        np.full(num, PENDING_TOKEN_ID, np.int64),
        ones,
        np.fromiter(in_lockstep.seeds, np.int64, num),
    )
    if not apart:
        return columns
    return ShareColumns(*map(np.concatenate, zip(columns, _apart(apart, rows), strict=True)))


def _apart(scheduled: Sequence[ScheduledSequence], rows: SequenceRows) -> ShareColumns:
    num, ids, samples = len(scheduled), [*map(TOKEN_IDS, scheduled)], [*map(SAMPLES, scheduled)]
    return ShareColumns(
        rows.update_all(scheduled),
        np.fromiter(map(START, scheduled), np.int64, num),
        np.fromiter(map(len, ids), np.int64, num),
        np.fromiter(chain.from_iterable(ids), np.int64),
        np.fromiter(map(len, samples), np.int64, num),
        np.fromiter(map(SEED, chain.from_iterable(samples)), np.int64),
    )
