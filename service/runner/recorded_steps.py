"""A CPU's decode steps, recorded for each of a few numbers of rows and replayed: what CUDA graphs are on a GPU.

A replay runs the loops of all layers in one parallel region (kernels/loops/recording.py), so Python, torch and the
waits between two loops are left out. Inputs lie at fixed places; rows that are padding have no context and write
nothing. The plain step is the twin: it computes batches with prompts or with more than FEW_ROWS rows, and models with
an operation that is no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu_loops import RecordedLoops, Recorder
from kernels.lora_tensors import TokenSlots
from kernels.paged_attention_decode import decode_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.adapter_method import AdapterInputs
from service.layers.attention import AttentionInputs
from service.layers.packed_weight import FEW_ROWS
from service.runner.batch_columns import BatchColumns, Int32Array, Per
from service.runner.eager_step import EagerStep
from service.runner.forward_pass import prompts_of_one_token
from service.runner.row_invariance import RowInvariance
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import SequenceRows
from service.runner.step_ways import Outputs, Step

Compute = Callable[[Tensor, Tensor, AttentionInputs, AdapterInputs | None], Tensor]
"""token_ids, positions [T] int64, attention, adapters -> hidden [T, hidden_size]"""


class RecordedSteps:
    """A StepWay: plain or not, the draws come behind it. Each number of rows is recorded when a step first has it."""

    def __init__(
        self,
        compute: Compute,
        recorder: Recorder,
        rows: SequenceRows,
        block_size: int,
        eager: EagerStep,
        row_invariance: RowInvariance,
    ) -> None:
        self._compute = compute
        self._row_invariance = row_invariance
        self._recorder = recorder
        self._rows = rows
        self._block_size = block_size
        self._eager = eager
        self._block_table = rows.block_table
        self._recorded: dict[_Kind, _RecordedStep] = {}
        self._refused: set[bool] = set()

    def takes(self, step: Step) -> bool:
        num_rows = step.batch.num_tokens
        if num_rows > FEW_ROWS or step.batch.num_decode < num_rows or step.reads_prompts:
            return False
        if self._rows.block_table is not self._block_table:  # it has grown
            self._block_table = self._rows.block_table
            self._recorded.clear()
        if step.is_deterministic and not self._row_invariance.can_be_at_once:
            return False
        kind = _kind(step)
        if kind not in self._recorded and kind.adapters not in self._refused:
            self._row_invariance.want(kind.deterministic)
            recorded = _RecordedStep(kind, self._block_table, self._block_size, self._rows.columns)
            if recorded.record(self._compute, self._recorder):
                self._recorded[kind] = recorded
            else:
                self._refused.add(kind.adapters)
        return kind in self._recorded

    def compute(self, step: Step) -> Outputs:
        tensors = self._eager.begin(step)
        hidden = self._recorded[_kind(step)].replay(step.batch, tensors["token_ids"])
        return self._eager.draw_from(hidden.index_select(0, tensors["logit_rows"]), step, tensors)


class _Kind(NamedTuple):
    """num_rows: with padding. adapters: whether some row has one. deterministic: as `Step.is_deterministic`."""

    num_rows: int
    adapters: bool
    deterministic: bool


def _kind(step: Step) -> _Kind:
    """With as many rows as the least power of two that is no less."""
    return _Kind(1 << (step.batch.num_tokens - 1).bit_length(), step.has_adapters, step.is_deterministic)


class _RecordedStep:
    """The inputs of decodes of one kind, and their recording."""

    def __init__(self, kind: _Kind, block_table: Int32Array, block_size: int, columns: BatchColumns) -> None:
        self._kind = kind
        self._columns = columns.per(Per.TOKEN, Per.SEQUENCE)
        self._arrays = {column.name: column.padded(kind.num_rows) for column in self._columns}
        there = {name: torch.from_numpy(array) for name, array in self._arrays.items()}

        def of_group(table: Tensor, slots: Tensor) -> AttentionInputs:
            sequences = table, there["context_lens"], block_size, there["rows"]
            if kind.deterministic:
                return AttentionInputs(cache_slots(slots, block_size), None, prompts_of_one_token(*sequences))
            return AttentionInputs(cache_slots(slots, block_size), decode_batch(*sequences), None)

        slots_of_groups = [there[name] for name in columns.slots]
        attention = AttentionInputs.by_group(columns.group_of, torch.from_numpy(block_table), slots_of_groups, of_group)
        adapters = None
        if kind.adapters:
            slots = TokenSlots(there["adapter_slots"])
            adapters = AdapterInputs(slots, slots)
        self._inputs = there["token_ids"], there["positions"], attention, adapters
        self._recorded: RecordedLoops | None = None

    def record(self, compute: Compute, recorder: Recorder) -> bool:
        """Compute a step of padding, and keep how. False: there is more to it than loops."""
        self._recorded = recorder.record(lambda: compute(*self._inputs))
        return self._recorded is not None

    def replay(self, batch: FlatBatch, token_ids: Tensor) -> Tensor:
        """hidden [T, hidden_size] of the batch, overwritten by the next replay. token_ids: pending ones filled in."""
        assert self._recorded is not None
        values = {**batch.tokens, **batch.sequences, "token_ids": token_ids.numpy()}
        num = len(token_ids)
        for column in self._columns:
            array = self._arrays[column.name]
            array[:num], array[num:] = values[column.name], column.padding
        return self._recorded.replay()[:num]
