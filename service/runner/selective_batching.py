"""Selective batching (ORCA, section 3): the tokens of all requests, in any phase and at any position, become one flat
sequence of tokens for the dense operations. Their borders are kept for attention and sampling.

A plan becomes columns first; its decodes, most of it, are columns already. The most common batch, in which every
sequence computes one token and draws one id, needs less (`decode_columns`): rows are in the plan's order, and kernels
read each sequence's blocks from its row of the block table.

Host side, numpy only: no tensor is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from kernels.lora_tiles import most_tiles, token_tiles
from service.core.iteration import IterationPlan, ScheduledDecodes
from service.core.scheduled_sequence import PENDING_TOKEN_ID, SAMPLES, TOKEN_IDS, Sample, ScheduledSequence
from service.runner.batch_columns import Array, Int32Array, Int64Array, Per
from service.runner.sequence_rows import SequenceRows

_ROW, _START = (itemgetter(ScheduledSequence._fields.index(name)) for name in ("row", "num_computed_tokens"))
_SEED = itemgetter(Sample._fields.index("seed"))


class PlanColumns(NamedTuple):
    """S sequences with T tokens and N draws, in the plan's order, all int64.

    rows [S]: of SequenceRows. num_computed_tokens [S]. query_lens [S]: tokens to compute. token_ids [T]. num_samples
    [S]. seeds [N].
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
        """Only the tokens from `first` until `stop`, without draws. Sequences may be cut."""
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
    """The columns of a plan that computes something. Also applies the plan's changes to `rows`."""
    parts = []
    if len(plan.decodes):
        parts.append(_of_decodes(plan.decodes, rows))
    if plan.scheduled:
        parts.append(_of_scheduled(plan.scheduled, rows))
    return parts[0] if len(parts) == 1 else PlanColumns(*map(np.concatenate, zip(*parts, strict=True)))


def _of_decodes(decodes: ScheduledDecodes, rows: SequenceRows) -> PlanColumns:
    rows.grow_tables(decodes)
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
    at = [*map(_ROW, scheduled)]
    rows.reserve(max(at))
    changed = [item for item in scheduled if item.block_ids]
    if changed:
        _take_over(changed, rows)
    return PlanColumns(
        np.array(at, np.int64),
        np.fromiter(map(_START, scheduled), np.int64, num),
        np.fromiter(map(len, ids), np.int64, num),
        np.fromiter(chain.from_iterable(ids), np.int64),
        np.fromiter(map(len, samples), np.int64, num),
        np.fromiter(map(_SEED, chain.from_iterable(samples)), np.int64),
    )


def _take_over(changed: list[ScheduledSequence], rows: SequenceRows) -> None:
    """For sequences whose block table has changed: write the changes, and remember the columns of those that may be
    new."""
    whole = [item for item in changed if item.table_start == 0]
    if whole:
        rows.remember(whole)
    of_rows, indexes, block_ids = list[int](), list[int](), list[int]()
    for item in changed:
        num = len(item.block_ids)
        of_rows += [item.row] * num
        indexes += range(item.table_start, item.table_start + num)
        block_ids += item.block_ids
    rows.write_blocks(*(np.array(each, np.int64) for each in (of_rows, indexes, block_ids)))


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """T tokens of S sequences, N draws. Sequences that compute one token (decodes) come first, longest context first.

    tokens, sequences, draws: the columns of BatchColumns, by name. Draws are in the plan's order; unless the batch
    `is_plain` they include the columns per ASKING_DRAW. query_starts [S + 1] int32. block_table [S, M] int32, M just
    enough for the longest; with several groups of layers, group by group. num_decode: sequences that compute one token.
    has_pending: some of their ids are PENDING_TOKEN_ID. token_starts [S] int64, in the plan's order: where each
    sequence's tokens begin. is_plain: all sequences' `SamplingParams.is_plain`. logit_rows: the tokens whose logits are
    needed, one per sequence that samples, in the plan's order. logit_places: the places of these sequences among the S.
    logit_lens: int32, the context of each token. samples_per_row: how many draws each has. draw_rows [N]: the row in
    SequenceRows of the sequence that each draw belongs to.
    """

    tokens: dict[str, Array]
    sequences: dict[str, Array]
    draws: dict[str, Array]
    query_starts: Int32Array
    block_table: Int32Array
    num_decode: int
    has_pending: bool
    token_starts: Int64Array
    is_plain: bool
    logit_rows: Int64Array
    logit_places: Int64Array
    logit_lens: Int32Array
    samples_per_row: Int64Array
    draw_rows: Int64Array

    @property
    def num_tokens(self) -> int:
        return int(self.query_starts[-1])

    @property
    def num_seqs(self) -> int:
        return len(self.block_table)

    @property
    def num_draws(self) -> int:
        return len(self.draw_rows)

    def arrays(self) -> dict[str, Array]:
        """What goes to the device, by name."""
        names = ("query_starts", "block_table", "logit_rows", "logit_places", "logit_lens", "draw_rows")
        columns = {**self.tokens, **self.sequences, **self.draws, **adapter_columns(self.tokens, self.logit_rows)}
        return {**columns, **{name: getattr(self, name) for name in names}}


def flat_order(planned: PlanColumns) -> Int64Array:
    """[S]: for each place in the flat batch, the index of its sequence in the plan. Decodes come first, longest context
    first; prompts keep the plan's order."""
    context_lens = planned.num_computed_tokens + planned.query_lens
    return np.argsort(np.where(planned.query_lens == 1, -context_lens, 1), kind="stable")


def flatten(planned: PlanColumns, rows: SequenceRows, block_size: int) -> FlatBatch:
    """A plan's columns as one batch. rows: already updated with the plan."""
    row, computed, query_lens, planned_ids, samples_per_seq, seeds = planned
    context_lens = computed + query_lens
    planned_starts = np.cumsum(query_lens) - query_lens

    is_decode, order = query_lens == 1, flat_order(planned)
    row, query_lens, computed, context_lens = (a[order] for a in (row, query_lens, computed, context_lens))

    starts = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(query_lens, out=starts[1:])
    places = np.arange(starts[-1])
    token_ids = planned_ids[places - np.repeat(starts[:-1] - planned_starts[order], query_lens)]
    positions = places - np.repeat(starts[:-1] - computed, query_lens)
    token_row = np.repeat(row, query_lens)

    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    is_sampled = samples_per_seq > 0
    samples_per_row = samples_per_seq[is_sampled]
    logit_place = place[is_sampled]
    draw_place = np.repeat(logit_place, samples_per_row)
    draw_row = row[draw_place]

    num_decode = int(is_decode.sum())
    is_plain = not rows["asks_more"][row].any()
    tokens: dict[str, Array] = {"token_ids": token_ids, "positions": positions}
    tokens |= rows.slots_at(token_row, positions, block_size)
    tokens |= rows.gather(Per.TOKEN, token_row)
    sequences: dict[str, Array] = {"rows": row, "context_lens": context_lens.astype(np.int32)}
    draws: dict[str, Array] = {"seeds": seeds, "sample_positions": context_lens[draw_place]}
    sequences |= rows.gather(Per.SEQUENCE, row)
    draws |= rows.gather(Per.DRAW, draw_row)
    if not is_plain:
        draws |= rows.gather(Per.ASKING_DRAW, draw_row)
    return FlatBatch(
        tokens=tokens,
        sequences=sequences,
        draws=draws,
        query_starts=starts.astype(np.int32),
        block_table=rows.first_blocks(row, -(-int(context_lens.max()) // block_size)),
        num_decode=num_decode,
        has_pending=bool((token_ids[:num_decode] == PENDING_TOKEN_ID).any()),
        token_starts=starts[place],
        is_plain=is_plain,
        logit_rows=starts[logit_place + 1] - 1,
        logit_places=logit_place,
        logit_lens=context_lens[logit_place].astype(np.int32),
        samples_per_row=samples_per_row,
        draw_rows=draw_row,
    )


def decode_columns(planned: PlanColumns, rows: SequenceRows, block_size: int) -> dict[str, Array]:
    """The batch's columns, by name, for a plan that `is_decode`; those per sequence are named "decode_...". rows:
    already updated with the plan."""
    row, positions = planned.rows, planned.num_computed_tokens
    columns: dict[str, Array] = {
        "token_ids": planned.token_ids,
        "positions": positions,
        "decode_rows": row,
        "decode_context_lens": (positions + 1).astype(np.int32),
        "seeds": planned.seeds,
        "sample_positions": positions + 1,
    }
    columns |= rows.slots_at(row, positions, block_size) | rows.gather(Per.TOKEN, row) | rows.gather(Per.DRAW, row)
    columns |= {f"decode_{name}": column for name, column in rows.gather(Per.SEQUENCE, row).items()}
    return columns


def adapter_columns(
    tokens: Mapping[str, Array], read: Int64Array, num_tokens: int = 0, num_adapters: int = 0
) -> dict[str, Array]:
    """The adapter columns of a batch with these tokens; {} if no token has an adapter. read: the tokens for which the
    end of the last layer is computed. num_tokens: with padding, if there is any. num_adapters: if given, make as many
    tiles as that many adapters may need.

    adapter_tiles int32: kernels/lora_tiles.py's, flat. read_slots, read_tiles: slots and tiles of `read`.
    """
    slots = tokens.get("adapter_slots")
    if slots is None or not slots.any():
        return {}
    padded = np.zeros(max(num_tokens, len(slots)), np.int32)
    padded[: len(slots)] = slots
    read_slots, most = padded[read], num_adapters or int(np.count_nonzero(np.unique(slots)))
    tiles, read_tiles = (token_tiles(each, most_tiles(len(each), most)).ravel() for each in (padded, read_slots))
    return {"adapter_tiles": tiles, "read_slots": read_slots, "read_tiles": read_tiles}


def has_filters(draws: Mapping[str, Array]) -> bool:
    """Whether some draw of these columns has top-k or top-p."""
    return bool(draws["top_k"].any()) or bool((draws["top_p"] < 1).any())
