"""The inputs of a step at fixed places on the device: what a CUDA graph was captured with and reads again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.core.iteration_plan import ScheduledDecodes
from service.layers.attention import AttentionInputs
from service.runner.batch_columns import BATCH_COLUMNS, Array, BatchColumns, Column, Per
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import DECODE_KINDS, FlatBatch, advance, can_advance
from service.runner.sequence_rows import NO_CHANGES, SequenceRows, TableChanges
from service.runner.staging import FixedTensors
from service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens, the first D of them decodes, and N draws; whatever is not used is padding.

    token_ids, positions [T] int64. decode_rows [D] int64: rows of SequenceRows. attention: its last layer is read where
    a draw's logits come from, at N rows in their order. draw_rows [N] int64: the row of the sequence that draws, 0 for
    padding. sampling: of all draws at once, whatever their parameters.
    """

    token_ids: Tensor
    positions: Tensor
    decode_rows: Tensor
    attention: AttentionInputs
    draw_rows: Tensor
    sampling: SamplingBatch


_LOGIT_ROWS = Column("logit_rows", Per.DRAW, np.int64)
_LOGIT_LENS = Column("logit_lens", Per.DRAW, np.int32)
_DRAW_ROWS = Column("draw_rows", Per.DRAW, np.int64)
_QUERY_STARTS = Column("query_starts", Per.SEQUENCE, np.int32)
"""Of batches with prompts alone: where a decode's logits come from need not be said."""

_TABLE_PLACES = Column("table_places", Per.ROW, np.int64)
_TABLE_VALUES = Column("table_values", Per.ROW, np.int32)
"""Changes of the block table; padding writes a 0 at place 0, in the row of padding."""


class GraphInputs:
    """Inputs of a step of some padded size. step: their tensors. table_places, table_values: what the step has to write
    to the block table first, `most_changes` entries at most. fetch: the step begins with it."""

    step: StepInputs

    def __init__(self, columns: Mapping[Column, int], most_changes: int, block_table: Tensor) -> None:
        columns = {**columns, _TABLE_PLACES: most_changes, _TABLE_VALUES: most_changes}
        padding = {column.name: column.padded(length) for column, length in columns.items()}
        self._fixed = FixedTensors(padding, block_table.device)
        self.most_changes = most_changes
        self.table_places, self.table_values = self._fixed["table_places"], self._fixed["table_values"]
        self.fetch = self._fixed.fetch

    def _write(self, values: Mapping[str, Array], changes: TableChanges) -> None:
        self._fixed.write({**values, "table_places": changes.places, "table_values": changes.values})


class DecodeInputs(GraphInputs):
    """Of at most `num_rows` decodes. block_table: DeviceBlockTable's tensor.

    version: of the ScheduledDecodes that it holds; None if it holds others, or none.
    """

    def __init__(
        self, num_rows: int, block_table: Tensor, block_size: int, columns: BatchColumns = BATCH_COLUMNS
    ) -> None:
        super().__init__(dict.fromkeys(columns.per(*DECODE_KINDS), num_rows), num_rows, block_table)
        fixed = self._fixed
        decode = decode_batch(block_table, fixed["context_lens"], block_size, fixed["rows"])
        self.version: int | None = None
        self._held: dict[str, Array] = {}
        self.step = StepInputs(
            token_ids=fixed["token_ids"],
            positions=fixed["positions"],
            decode_rows=fixed["rows"],
            attention=AttentionInputs(cache_slots(fixed["slot_mapping"], block_size), decode, None),
            draw_rows=fixed["rows"],
            sampling=_sampling(fixed, columns),
        )

    def fill(self, values: Mapping[str, Array], changes: TableChanges = NO_CHANGES, version: int | None = None) -> None:
        """At most `num_rows` decodes, by `decode_columns`. version: of a plan's ScheduledDecodes if they are these."""
        self._write(values, changes)
        self._held = self._fixed.written()
        self.version = version

    def can_advance(self, decodes: ScheduledDecodes) -> bool:
        """Whether they are the decodes that were filled in, each one token further."""
        return self.version == decodes.version and can_advance(self._held, decodes)

    def advance(self, decodes: ScheduledDecodes, rows: SequenceRows, block_size: int, changes: TableChanges) -> None:
        """As `fill`, of decodes for which it `can_advance`. rows: up to date with them."""
        self._write({}, changes)
        self.version = None  # unless all of it is done
        advance(self._held, rows, block_size)
        self.version = decodes.version


class MixedInputs(GraphInputs):
    """Of at most `num_tokens` tokens, at most `num_decodes` of them decodes', the others prompts'. GraphSize says how
    many sequences and draws there may be.

    The tokens stand in the order of the flat batch, with padding behind them. So the matrix products have the same
    shape wherever the border between decodes and prompts lies.
    """

    def __init__(
        self,
        num_tokens: int,
        num_decodes: int,
        block_table: Tensor,
        block_size: int,
        columns: BatchColumns = BATCH_COLUMNS,
    ) -> None:
        size = GraphSize(num_tokens, num_decodes)
        self._num_prompts = size.most_prompts
        super().__init__(
            {
                **dict.fromkeys(columns.per(Per.TOKEN), num_tokens),
                **{column.of_the("decode"): num_decodes for column in columns.per(Per.SEQUENCE)},
                **{column.of_the("prompt"): size.most_prompts for column in columns.per(Per.SEQUENCE)},
                **dict.fromkeys((*columns.per(Per.DRAW), _LOGIT_ROWS, _LOGIT_LENS, _DRAW_ROWS), size.most_draws),
                _QUERY_STARTS: size.most_prompts + 1,
            },
            num_tokens,
            block_table,
        )
        fixed = self._fixed
        decode = None
        if num_decodes:
            decode = decode_batch(block_table, fixed["decode_context_lens"], block_size, fixed["decode_rows"])
        prefill = prefill_batch(
            block_table,
            fixed["query_starts"],
            fixed["prompt_context_lens"],
            max_query_len=num_tokens,
            block_size=block_size,
            rows=fixed["prompt_rows"],
        )
        last = decode_batch(block_table, fixed["logit_lens"], block_size, fixed["draw_rows"])
        attention = AttentionInputs(cache_slots(fixed["slot_mapping"], block_size), decode, prefill)
        self.step = StepInputs(
            token_ids=fixed["token_ids"],
            positions=fixed["positions"],
            decode_rows=fixed["decode_rows"],
            attention=attention.read_at(fixed["logit_rows"], last),
            draw_rows=fixed["draw_rows"],
            sampling=_sampling(fixed, columns),
        )

    def fill(self, batch: FlatBatch, changes: TableChanges = NO_CHANGES) -> None:
        """A batch that there is room for (`GraphSize.takes`), and that `is_plain`."""
        border = batch.num_decode
        query_starts = np.full(self._num_prompts + 1, batch.query_starts[-1])
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
        self._write(values, changes)


def _sampling(fixed: FixedTensors, columns: BatchColumns) -> SamplingBatch:
    return SamplingBatch({column.name: fixed[column.name] for column in columns.per(Per.DRAW)}, is_greedy=False)
