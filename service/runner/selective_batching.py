"""Selective batching (ORCA, section 3): the tokens of all requests, in any phase and at any position, become one
flat row of tokens for the dense operations; their borders are kept for attention and sampling.

The commonest batch, in which every sequence computes one token and draws one id, needs less (`decode_columns`): rows
stand in the plan's order, and blocks are named by their row in the block table.

Host side and numpy only: no tensor is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.lora_tiles import most_tiles, token_tiles
from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledDecodes
from service.runner.batch_columns import Array, Int32Array, Int64Array, Per
from service.runner.plan_columns import PlanColumns
from service.runner.sequence_rows import SequenceRows


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """T tokens of S sequences, N draws. Sequences that compute one token stand first, longest context first.

    tokens, sequences, draws: the columns of BatchColumns, by name. Draws are in the plan's order; unless the batch
    `is_plain` they have the columns of an ASKING_DRAW too.
    query_starts [S + 1] int32. block_table [S, M] int32, M just enough for the longest.
    num_decode: sequences that compute one token. has_pending: some of their ids are PENDING_TOKEN_ID.
    token_starts [S] int64: where each sequence's tokens begin, in the plan's order.
    is_plain: every sequence's `SamplingParams.is_plain`.
    logit_rows: tokens whose logits are needed, one a sequence that samples, in the plan's order. logit_places: these
    sequences' places among the S. logit_lens: int32, each token's context.
    samples_per_row: draws from each of them.
    draw_rows [N]: the row in SequenceRows of the sequence whose logits are drawn from.
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
        """What the device has to know, by name."""
        names = ("query_starts", "block_table", "logit_rows", "logit_places", "logit_lens", "draw_rows")
        columns = {**self.tokens, **self.sequences, **self.draws, **adapter_columns(self.tokens, self.logit_rows)}
        return {**columns, **{name: getattr(self, name) for name in names}}


def flatten(planned: PlanColumns, rows: SequenceRows, block_size: int) -> FlatBatch:
    """A plan's columns as one batch. rows: up to date with the plan."""
    row, computed, query_lens, planned_ids, samples_per_seq, seeds = planned
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
    token_row = np.repeat(row, query_lens)
    blocks = rows.block_table[token_row, positions // block_size].astype(np.int64)

    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    is_sampled = samples_per_seq > 0
    samples_per_row = samples_per_seq[is_sampled]
    logit_place = place[is_sampled]
    draw_place = np.repeat(logit_place, samples_per_row)
    draw_row = row[draw_place]

    num_decode = int(is_decode.sum())
    is_plain = not rows["asks_more"][row].any()
    tokens: dict[str, Array] = {
        "token_ids": token_ids,
        "positions": positions,
        "slot_mapping": blocks * block_size + positions % block_size,
    }
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
        block_table=rows.block_table[row, : -(-int(context_lens.max()) // block_size)],
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
    """The batch's columns, by name, of a plan that `is_decode`; "decode_" before those of sequences. rows: up to date
    with it."""
    row, positions = planned.rows, planned.num_computed_tokens
    blocks = rows.block_table[row, positions // block_size].astype(np.int64)
    columns = {
        "token_ids": planned.token_ids,
        "positions": positions,
        "slot_mapping": blocks * block_size + positions % block_size,
        "decode_rows": row,
        "decode_context_lens": (positions + 1).astype(np.int32),
        "seeds": planned.seeds,
        "sample_positions": positions + 1,
    }
    columns |= rows.gather(Per.TOKEN, row) | rows.gather(Per.DRAW, row)
    columns |= {f"decode_{name}": column for name, column in rows.gather(Per.SEQUENCE, row).items()}
    return columns


def adapter_columns(
    tokens: Mapping[str, Array], read: Int64Array, num_tokens: int = 0, num_adapters: int = 0
) -> dict[str, Array]:
    """What is told of the adapters of a batch with these tokens: nothing if none has one. read: tokens that the last
    layer's end is computed for. num_tokens: with the padding behind them, if there is any. num_adapters: that there may
    be, if tiles are to be as many as for all of them.

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


def can_advance(held: Mapping[str, Array], decodes: ScheduledDecodes) -> bool:
    """Whether each decode computes one token, right behind the one in `held`. held: the same sequences' columns."""
    is_next = held["sample_positions"] == decodes.num_computed_tokens
    return bool(is_next.all()) and bool((decodes.num_new_tokens == 1).all())


def advance(held: Mapping[str, Array], rows: SequenceRows, block_size: int) -> None:
    """`held`, of decodes that are all pending, becomes in place the columns of the same decodes one token further.
    rows: up to date with these. The block table is read where a block begins only: elsewhere slots follow
    each other."""
    for name in ("positions", "slot_mapping", "decode_context_lens", "sample_positions"):
        np.add(held[name], 1, out=held[name])
    positions = held["positions"]
    (begins,) = (positions % block_size == 0).nonzero()
    if len(begins):
        blocks = rows.block_table[held["decode_rows"][begins], positions[begins] // block_size]
        held["slot_mapping"][begins] = blocks.astype(np.int64) * block_size
