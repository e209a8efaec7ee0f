"""The inputs of a step of decodes and prompts at fixed places on the device, for a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.runner.device_block_table import pad_changes_into
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import NO_CHANGES, TableChanges, empty_changes
from service.runner.staging import Array, FixedTensors
from service.runner.step_inputs import StepInputs
from service.sampling.sampler import SamplingBatch


class MixedInputs:
    """Inputs of a step of at most `num_tokens` tokens, at most `num_decodes` of them decodes', the others prompts'.
    GraphSize says how many sequences and draws there may be.

    The tokens stand in the order of the flat batch, with padding behind them. So the matrix products have the same
    shape wherever the border between decodes and prompts lies.

    table_places, table_values: what the step has to write to the block table first, `num_tokens` entries at most.
    What is filled in reaches the step by `fetch`, with which its graph begins.
    """

    def __init__(self, num_tokens: int, num_decodes: int, block_table: Tensor, block_size: int) -> None:
        size = GraphSize(num_tokens, num_decodes)
        num_prompts, num_draws = size.most_prompts, size.most_draws
        like: dict[str, Array] = {
            **{name: np.empty(num_tokens, np.int64) for name in ("token_ids", "positions", "slot_mapping")},
            **{name: np.empty(num_draws, np.int64) for name in ("logit_rows", "draw_rows", "seeds")},
            "sample_positions": np.empty(num_draws, np.int64),
            "logit_lens": np.empty(num_draws, np.int32),
            "temperature": np.empty(num_draws, np.float32),
            "top_p": np.empty(num_draws, np.float32),
            "top_k": np.empty(num_draws, np.int32),
            "decode_rows": np.empty(num_decodes, np.int64),
            "decode_lens": np.empty(num_decodes, np.int32),
            "prompt_rows": np.empty(num_prompts, np.int64),
            "prompt_lens": np.empty(num_prompts, np.int32),
            "query_starts": np.empty(num_prompts + 1, np.int32),
            **empty_changes(num_tokens)._asdict(),
        }
        fixed = FixedTensors(like, block_table.device)
        decode = None
        if num_decodes:
            decode = decode_batch(block_table, fixed["decode_lens"], block_size, fixed["decode_rows"])
        prefill = prefill_batch(
            block_table,
            fixed["query_starts"],
            fixed["prompt_lens"],
            max_query_len=num_tokens,
            block_size=block_size,
            rows=fixed["prompt_rows"],
        )
        last = decode_batch(block_table, fixed["logit_lens"], block_size, fixed["draw_rows"])
        attention = AttentionInputs(cache_slots(fixed["slot_mapping"], block_size), decode, prefill)
        self.num_tokens, self.num_decodes = num_tokens, num_decodes
        self.most_changes = num_tokens
        self.table_places, self.table_values = fixed["places"], fixed["values"]
        self._fixed = fixed
        self.step = StepInputs(
            token_ids=fixed["token_ids"],
            positions=fixed["positions"],
            decode_rows=fixed["decode_rows"],
            attention=attention.read_at(fixed["logit_rows"], last),
            draw_rows=fixed["draw_rows"],
            sampling=SamplingBatch.of(fixed, is_greedy=False),
        )
        host = fixed.writable()
        for name, array in host.items():
            array.fill(_PADDING.get(name, 0))
        self._num_filled = dict.fromkeys(host, 0)
        self.fetch = fixed.fetch
        self.fetch()

    def fill(self, batch: FlatBatch, changes: TableChanges = NO_CHANGES) -> None:
        """A batch that there is room for (`GraphSize.takes`)."""
        host = self._fixed.writable()
        for name, values in _values(batch):
            self._write(host[name], name, values)
        host["query_starts"][len(batch.rows) - batch.num_decode + 1 :] = batch.query_starts[-1]
        pad_changes_into(TableChanges(host["places"], host["values"]), changes)

    def _write(self, array: Array, name: str, values: Array) -> None:
        """Padding is written only where the batch before had values."""
        num, num_before = len(values), self._num_filled[name]
        array[:num] = values
        if num < num_before:
            array[num:num_before] = _PADDING.get(name, 0)
        self._num_filled[name] = num


def _values(batch: FlatBatch) -> Iterator[tuple[str, Array]]:
    """What stands first in the array of each name."""
    border = batch.num_decode
    yield "token_ids", batch.token_ids
    yield "positions", batch.positions
    yield "slot_mapping", batch.slot_mapping
    yield "logit_rows", np.repeat(batch.logit_rows, batch.samples_per_row)
    yield "logit_lens", batch.sample_positions
    yield "draw_rows", batch.draw_rows
    yield "seeds", batch.seeds
    yield "sample_positions", batch.sample_positions
    yield "temperature", batch.temperature
    yield "top_p", batch.top_p
    yield "top_k", batch.top_k
    yield "decode_rows", batch.rows[:border]
    yield "decode_lens", batch.context_lens[:border]
    yield "prompt_rows", batch.rows[border:]
    yield "prompt_lens", batch.context_lens[border:]
    yield "query_starts", batch.query_starts[border:]


_PADDING: Mapping[str, float] = {"slot_mapping": -1, "top_p": 1.0}
"""Everything else is 0: the row that is nobody's, no context, the largest logit of the first token."""
