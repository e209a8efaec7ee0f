"""The inputs of a step at fixed places on the device: what a CUDA graph was captured with and reads again, and a CPU's
recording.

Most steps have the decodes of the one before, one token further: then the columns are advanced where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from kernels.lora_tiles import most_tiles, tile_size
from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.core.iteration_plan import ScheduledDecodes
from service.layers.adapter_method import AdapterInputs
from service.layers.attention import AttentionInputs
from service.runner.batch_columns import BATCH_COLUMNS, Array, BatchColumns, Column, Per
from service.runner.forward_pass import prompts_of_one_token, token_slots
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import FlatBatch, adapter_columns
from service.runner.sequence_rows import NO_CHANGES, SequenceRows, TableChanges
from service.runner.staging import FixedTensors
from service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens, the first D of them decodes, and N draws; whatever is not used is padding.

    token_ids, positions [T] int64. decode_rows [D] int64: rows of SequenceRows. attention: its last layer is read where
    a draw's logits come from, at N rows in their order. draw_rows [N] int64: the row of the sequence that draws, 0 for
    padding. sampling: of all draws at once, whatever their parameters. adapters: None in a graph for steps without.
    received [T, hidden_size]: from the stage before, if there is one; only read.
    """

    token_ids: Tensor
    positions: Tensor
    decode_rows: Tensor
    attention: AttentionInputs
    draw_rows: Tensor
    sampling: SamplingBatch
    adapters: AdapterInputs | None
    received: Tensor | None = None


_LOGITS = (
    Column("logit_rows", Per.DRAW, np.int64),
    Column("logit_lens", Per.DRAW, np.int32),
    Column("draw_rows", Per.DRAW, np.int64),
)
_QUERY_STARTS = Column("query_starts", Per.SEQUENCE, np.int32)
"""Of steps with prompts: a decode's logits are its own."""

_ADAPTER_TILES = Column("adapter_tiles", Per.TOKEN, np.int32)
_READ_SLOTS, _READ_TILES = Column("read_slots", Per.DRAW, np.int32), Column("read_tiles", Per.DRAW, np.int32)
"""Of graphs for steps with adapters. Tiles are always written whole, with the padding's places in them."""

_TABLE_CHANGES = Column("table_places", Per.ROW, np.int64), Column("table_values", Per.ROW, np.int32)
"""Padding writes a 0 at place 0, in the row of padding."""


class GraphInputs:
    """Inputs of a step of at most `size`. Tokens stand in the order of the batch, with padding behind them: so the
    matrix products have the same shape wherever the border between decodes and prompts lies.

    block_table: DeviceBlockTable's tensor. step: the tensors. fetch: with which the step begins. table_places,
    table_values: what it has to write to the block table then, one entry at most of each group for a token.
    version: of the ScheduledDecodes that it holds; None if it holds others, or none. num_adapters: that a step may
    have, and then the columns are those that tell of them; 0: the steps have none. split_len: of attention
    (`RowInvariance`). received: as StepInputs has it. all_as_prompts: of decodes alone, as of `attention_inputs`.
    reads_all: the last layer's output is wanted of all tokens, not only of those whose logits are.
    """

    def __init__(
        self,
        size: GraphSize,
        block_table: Tensor,
        block_size: int,
        columns: BatchColumns = BATCH_COLUMNS,
        num_adapters: int = 0,
        split_len: int | None = None,
        received: Tensor | None = None,
        *,
        all_as_prompts: bool = False,
        reads_all: bool = False,
    ) -> None:
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
        padding = {column.name: column.padded(length) for column, length in lengths.items()}
        self._fixed = fixed = FixedTensors(padding, block_table.device)

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
        self.step = StepInputs(
            token_ids=fixed["token_ids"],
            positions=fixed["positions"],
            decode_rows=fixed["decode_rows"],
            attention=AttentionInputs.by_group(columns.group_of, block_table, slots, of_group),
            draw_rows=fixed["draw_rows" if size.is_mixed else "decode_rows"],
            sampling=SamplingBatch({c.name: fixed[c.name] for c in columns.per(Per.DRAW)}, is_greedy=False),
            adapters=_adapter_inputs(fixed, reads_all=reads_all or not size.is_mixed) if num_adapters else None,
            received=received,
        )
        self._size, self._num_adapters = size, num_adapters
        self.table_places, self.table_values = fixed["table_places"], fixed["table_values"]
        self.most_changes = size.num_tokens * len(columns.slots)
        self.fetch = fixed.fetch
        self.version: int | None = None
        self._held: dict[str, Array] = {}

    def fill_decodes(
        self, values: Mapping[str, Array], changes: TableChanges = NO_CHANGES, version: int | None = None
    ) -> None:
        """Decodes alone, by `decode_columns`. version: of a plan's ScheduledDecodes if they are these."""
        self._write({**values, **self._adapters(values)}, changes)
        self._held = self._fixed.written()
        self.version = version

    def can_advance(self, decodes: ScheduledDecodes) -> bool:
        """Whether they are the decodes that were filled in, each one token further."""
        return self.version == decodes.version and can_advance(self._held, decodes)

    def advance(
        self, decodes: ScheduledDecodes, rows: SequenceRows, block_size: int, changes: TableChanges = NO_CHANGES
    ) -> None:
        """As `fill_decodes`, of decodes for which it `can_advance`. rows: up to date with them."""
        self._write({}, changes)
        self.version = None  # unless all of it is done
        advance(self._held, rows, block_size)
        self.version = decodes.version

    def fill(self, batch: FlatBatch, changes: TableChanges = NO_CHANGES) -> None:
        """A batch that there is room for (`GraphSize.takes`), that has a prompt, and that `is_plain`."""
        border = batch.num_decode
        query_starts = np.full(self._size.most_prompts + 1, batch.query_starts[-1])
        query_starts[: batch.num_seqs - border + 1] = batch.query_starts[border:]
        values = {
            **batch.tokens,
            **{f"decode_{name}": column[:border] for name, column in batch.sequences.items()},
            **{f"prompt_{name}": column[border:] for name, column in batch.sequences.items()},
            **batch.draws,
            "logit_rows": np.repeat(batch.logit_rows, batch.samples_per_row),
            "logit_lens": np.repeat(batch.logit_lens, batch.samples_per_row),
            "draw_rows": batch.draw_rows,
            "query_starts": query_starts,
        }
        self._write({**values, **self._adapters(values)}, changes)

    def _adapters(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Whose adapter each place has, with the padding behind them. values: all others."""
        if self.step.adapters is None:
            return {}
        read = np.zeros(self._size.most_draws, np.int64)
        if self._size.is_mixed:
            read[: len(values["logit_rows"])] = values["logit_rows"]
        columns = adapter_columns(values, read, self._size.num_tokens, self._num_adapters)
        return columns if self._size.is_mixed else {"adapter_tiles": columns["adapter_tiles"]}

    def _write(self, values: Mapping[str, Array], changes: TableChanges) -> None:
        self._fixed.write({**values, "table_places": changes.places, "table_values": changes.values})


def _length_of_tiles(num_tokens: int, num_adapters: int) -> int:
    return most_tiles(num_tokens, num_adapters) * (1 + tile_size(num_tokens))


def _adapter_inputs(fixed: FixedTensors, *, reads_all: bool) -> AdapterInputs:
    tokens = token_slots(fixed["adapter_slots"], fixed["adapter_tiles"])
    return AdapterInputs(tokens, tokens if reads_all else token_slots(fixed["read_slots"], fixed["read_tiles"]))


def can_advance(held: Mapping[str, Array], decodes: ScheduledDecodes) -> bool:
    """Whether each decode computes one token, right behind the one in `held`. held: the same sequences' columns."""
    is_next = held["sample_positions"] == decodes.num_computed_tokens
    return bool(is_next.all()) and bool((decodes.num_new_tokens == 1).all())


def advance(held: Mapping[str, Array], rows: SequenceRows, block_size: int) -> None:
    """`held`, of decodes that are all pending, becomes in place the columns of the same decodes one token further.
    rows: up to date with these. The block table is read where a block begins only: elsewhere slots follow
    each other."""
    for name in ("positions", *rows.columns.slots, "decode_context_lens", "sample_positions"):
        np.add(held[name], 1, out=held[name])
    positions = held["positions"]
    (begins,) = (positions % block_size == 0).nonzero()
    if len(begins):
        for name, slots in rows.slots_at(held["decode_rows"][begins], positions[begins], block_size).items():
            held[name][begins] = slots
