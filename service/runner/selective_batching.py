"""Selective batching (ORCA, section 3): the tokens of all requests, in any phase and at any position, become one
flat row of tokens for the dense operations; their borders are kept for attention and sampling.

Host side and numpy only: no tensor is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence
from service.runner.sequence_rows import Float32Array, Int32Array, Int64Array, SequenceRows
from service.runner.share_columns import share_columns


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """T tokens of S sequences, N draws. Sequences that compute one token stand first, longest context first.

    token_ids, positions, slot_mapping [T] int64.
    context_lens [S] int32: tokens in the cache after this iteration's writes. query_starts [S + 1] int32.
    block_table [S, M] int32, M just enough for the longest. num_decode: sequences that compute one token.
    rows [S] int64: in SequenceRows. has_pending: some ids of decodes are PENDING_TOKEN_ID.
    token_starts [S] int64: where each sequence's tokens begin, in the plan's order.
    is_plain: every sequence's `SamplingParams.is_plain`.
    logit_rows: tokens whose logits are needed, one a sequence that samples, in the plan's order. logit_places: these
    sequences' places among the S. logit_lens: int32, each token's context.
    samples_per_row: draws from each of them. The remaining arrays have one entry a draw, in the plan's order.
    draw_rows: the row in SequenceRows of the sequence whose logits are drawn from.
    """

    token_ids: Int64Array
    positions: Int64Array
    slot_mapping: Int64Array
    context_lens: Int32Array
    query_starts: Int32Array
    block_table: Int32Array
    num_decode: int
    rows: Int64Array
    has_pending: bool
    token_starts: Int64Array
    is_plain: bool
    logit_rows: Int64Array
    logit_places: Int64Array
    logit_lens: Int32Array
    samples_per_row: Int64Array
    draw_rows: Int64Array
    temperature: Float32Array
    top_p: Float32Array
    top_k: Int32Array
    seeds: Int64Array
    sample_positions: Int64Array

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Every array by its name, for the way to the device."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, np.ndarray)}


def flatten(scheduled: Sequence[ScheduledSequence], rows: SequenceRows, block_size: int) -> FlatBatch:
    """The plan's sequences as one batch; `rows` takes over what has changed. At least one sequence."""
    row, computed, query_lens, planned_ids, samples_per_seq, seeds = share_columns(scheduled, rows)
    context_lens = computed + query_lens
    planned_starts = np.cumsum(query_lens) - query_lens

    # Decodes first, longest first; prompts keep the plan's order.
    is_decode = query_lens == 1
    order = np.argsort(np.where(is_decode, -context_lens, 1), kind="stable")
    row, query_lens, computed, context_lens = (a[order] for a in (row, query_lens, computed, context_lens))

    starts = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(query_lens, out=starts[1:])
    places = np.arange(starts[-1])
    token_ids = planned_ids[places - np.repeat(starts[:-1] - planned_starts[order], query_lens)]
    positions = places - np.repeat(starts[:-1] - computed, query_lens)
    blocks = rows.block_table[np.repeat(row, query_lens), positions // block_size].astype(np.int64)

    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    is_sampled = samples_per_seq > 0
    samples_per_row = samples_per_seq[is_sampled]
    logit_place = place[is_sampled]
    draw_place = np.repeat(logit_place, samples_per_row)
    draw_row = row[draw_place]
    context_lens = context_lens.astype(np.int32)

    num_decode = int(is_decode.sum())
    return FlatBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        context_lens=context_lens,
        query_starts=starts.astype(np.int32),
        block_table=rows.block_table[row, : -(-int(context_lens.max()) // block_size)],
        num_decode=num_decode,
        rows=row,
        has_pending=bool((token_ids[:num_decode] == PENDING_TOKEN_ID).any()),
        token_starts=starts[place],
        is_plain=not rows.asks_more[row].any(),
        logit_rows=starts[logit_place + 1] - 1,
        logit_places=logit_place,
        logit_lens=context_lens[logit_place],
        samples_per_row=samples_per_row,
        draw_rows=draw_row,
        temperature=rows.temperature[draw_row],
        top_p=rows.top_p[draw_row],
        top_k=rows.top_k[draw_row],
        seeds=seeds,
        sample_positions=context_lens[draw_place].astype(np.int64),
    )
