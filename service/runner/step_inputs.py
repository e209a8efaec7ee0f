"""The inputs of a step at fixed addresses: which columns there are, how long they are, and how attention reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from kernels.lora_tiles import most_tiles, tile_size
from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.adapter_method import AdapterInputs
from service.layers.attention import AttentionInputs
from service.runner.batch_columns import Array, BatchColumns, Column, Per
from service.runner.forward_pass import prompts_of_one_token, token_slots
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import FlatBatch, adapter_columns
from service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens, the first D of them decodes, and N draws; unused entries are padding.

    token_ids, positions [T] int64. decode_rows [D] int64: rows of SequenceRows. attention: its last layer is computed
    only for the N rows that draws need, in their order. draw_rows [N] int64: the row of the sequence that draws, 0 for
    padding. sampling: of all draws at once, whatever their parameters. adapters: None in a graph for steps without.
    received [T, hidden_size]: from the previous stage, if there is one; read only.
    """

    token_ids: Tensor
    positions: Tensor
    decode_rows: Tensor
    attention: AttentionInputs
    draw_rows: Tensor
    sampling: SamplingBatch
    adapters: AdapterInputs | None
    received: Tensor | None = None

    def receive(self, hidden: Tensor, order: Tensor | None) -> None:
        """Write the previous stage's hidden states. order: the place of each row; None: as they lie."""
        if self.received is None:
            return
        if order is None:
            self.received[: len(hidden)].copy_(hidden)
        else:
            self.received.index_copy_(0, order, hidden)


_LOGITS = (
    Column("logit_rows", Per.DRAW, np.int64),
    Column("logit_lens", Per.DRAW, np.int32),
    Column("draw_rows", Per.DRAW, np.int64),
)
_QUERY_STARTS = Column("query_starts", Per.SEQUENCE, np.int32)
"""Only for steps with prompts: a decode's logits are those of its one token."""

_ADAPTER_TILES = Column("adapter_tiles", Per.TOKEN, np.int32)
_READ_SLOTS, _READ_TILES = Column("read_slots", Per.DRAW, np.int32), Column("read_tiles", Per.DRAW, np.int32)
"""Only for steps with adapters. Tiles are always written whole, including those of padding."""

_TABLE_CHANGES = Column("table_places", Per.ROW, np.int64), Column("table_values", Per.ROW, np.int32)
"""Padding writes 0 at place 0, which is in padding's row."""


class StepForm(NamedTuple):
    """How a step reads its inputs. split_len: of attention (`RowInvariance`). received: as in StepInputs.
    all_as_prompts: for decodes alone, as in `attention_inputs`. reads_all: the last layer's output is read for all
    tokens, not only for those with logits."""

    split_len: int | None = None
    received: Tensor | None = None
    all_as_prompts: bool = False
    reads_all: bool = False


PLAIN_FORM = StepForm()


class FixedColumns(Protocol):
    """The columns' tensors, by name."""

    def __getitem__(self, name: str) -> Tensor: ...


def column_lengths(size: GraphSize, columns: BatchColumns, num_adapters: int) -> dict[Column, int]:
    """The columns of a step of this size, and how many entries each has. num_adapters: how many adapters a step may
    use."""
    lengths = {
        **dict.fromkeys(columns.per(Per.TOKEN), size.num_tokens),
        **dict.fromkeys(_TABLE_CHANGES, size.num_tokens * len(columns.slots)),
        **{column.of_the("decode"): size.num_decodes for column in columns.per(Per.SEQUENCE)},
        **dict.fromkeys(columns.per(Per.DRAW), size.most_draws),
    }
    if size.is_mixed:
        lengths |= {column.of_the("prompt"): size.most_prompts for column in columns.per(Per.SEQUENCE)}
        lengths |= {**dict.fromkeys(_LOGITS, size.most_draws), _QUERY_STARTS: size.most_prompts + 1}
    if num_adapters:
        lengths |= {_ADAPTER_TILES: _length_of_tiles(size.num_tokens, num_adapters)}
    if num_adapters and size.is_mixed:
        num_read = size.most_draws
        lengths |= {_READ_SLOTS: num_read, _READ_TILES: _length_of_tiles(num_read, num_adapters)}
    return lengths


def mixed_values(batch: FlatBatch, size: GraphSize) -> dict[str, Array]:
    """The columns of a batch that fits such a step, without those of adapters."""
    border = batch.num_decode
    query_starts = np.full(size.most_prompts + 1, batch.query_starts[-1])
    query_starts[: batch.num_seqs - border + 1] = batch.query_starts[border:]
    return {
        **batch.tokens,
        **{f"decode_{name}": column[:border] for name, column in batch.sequences.items()},
        **{f"prompt_{name}": column[border:] for name, column in batch.sequences.items()},
        **batch.draws,
        "logit_rows": np.repeat(batch.logit_rows, batch.samples_per_row),
        "logit_lens": np.repeat(batch.logit_lens, batch.samples_per_row),
        "draw_rows": batch.draw_rows,
        "query_starts": query_starts,
    }


def adapter_values(values: Mapping[str, Array], size: GraphSize, num_adapters: int) -> dict[str, Array]:
    """The adapter columns, padding included. values: all other columns."""
    read = np.zeros(size.most_draws, np.int64)
    if size.is_mixed:
        read[: len(values["logit_rows"])] = values["logit_rows"]
    columns = adapter_columns(values, read, size.num_tokens, num_adapters)
    return columns if size.is_mixed else {"adapter_tiles": columns["adapter_tiles"]}


def step_inputs(
    fixed: FixedColumns,
    size: GraphSize,
    block_table: Tensor,
    block_size: int,
    columns: BatchColumns,
    form: StepForm,
    *,
    has_adapters: bool,
) -> StepInputs:
    """Arguments as in GraphInputs. fixed: the columns of `column_lengths`."""
    split_len, received, all_as_prompts, reads_all = form

    def of_group(table: Tensor, slots: Tensor) -> AttentionInputs:
        decode, lens, rows = None, fixed["decode_context_lens"], fixed["decode_rows"]
        if all_as_prompts:
            prompts = prompts_of_one_token(table, lens, block_size, rows)
            return AttentionInputs(cache_slots(slots, block_size), None, prompts)
        if size.num_decodes:
            decode = decode_batch(table, lens, block_size, rows, split_len)
        attention = AttentionInputs(cache_slots(slots, block_size), decode, None)
        if size.is_mixed:
            prefill = prefill_batch(
                table,
                fixed["query_starts"],
                fixed["prompt_context_lens"],
                max_query_len=size.num_tokens,
                block_size=block_size,
                rows=fixed["prompt_rows"],
                split_len=split_len,
            )
            attention = replace(attention, prefill=prefill)
        if size.is_mixed and not reads_all:
            last = decode_batch(table, fixed["logit_lens"], block_size, fixed["draw_rows"], split_len)
            attention = attention.read_at(fixed["logit_rows"], last)
        return attention

    slots = [fixed[name] for name in columns.slots]
    return StepInputs(
        token_ids=fixed["token_ids"],
        positions=fixed["positions"],
        decode_rows=fixed["decode_rows"],
        attention=AttentionInputs.by_group(columns.group_of, block_table, slots, of_group),
        draw_rows=fixed["draw_rows" if size.is_mixed else "decode_rows"],
        sampling=SamplingBatch({c.name: fixed[c.name] for c in columns.per(Per.DRAW)}, is_greedy=False),
        adapters=_adapter_inputs(fixed, reads_all=reads_all or not size.is_mixed) if has_adapters else None,
        received=received,
    )


def _length_of_tiles(num_tokens: int, num_adapters: int) -> int:
    return most_tiles(num_tokens, num_adapters) * (1 + tile_size(num_tokens))


def _adapter_inputs(fixed: FixedColumns, *, reads_all: bool) -> AdapterInputs:
    tokens = token_slots(fixed["adapter_slots"], fixed["adapter_tiles"])
    return AdapterInputs(tokens, tokens if reads_all else token_slots(fixed["read_slots"], fixed["read_tiles"]))
