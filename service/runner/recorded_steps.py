"""A CPU's decode steps, recorded for each of a few numbers of rows and replayed: what CUDA graphs are on a GPU.

A replay runs the loops of all layers in one parallel region (kernels/loops/recording.py), so Python, torch and the
waits between two loops are left out. Inputs lie at fixed places; rows that are padding have no context and write
nothing. The plain step is the twin: it computes batches with prompts or with more than FEW_ROWS rows, and models with
an operation that is no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu_loops import RecordedLoops, Recorder
from kernels.paged_attention_decode import decode_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.layers.packed_weight import FEW_ROWS
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import SequenceRows

Compute = Callable[[Tensor, Tensor, AttentionInputs], Tensor]
"""token_ids, positions [T] int64, attention -> hidden [T, hidden_size]"""


class RecordedSteps:
    """Engine thread. Each number of rows is recorded when a step first has it."""

    def __init__(self, compute: Compute, recorder: Recorder, rows: SequenceRows, block_size: int) -> None:
        self._compute = compute
        self._recorder = recorder
        self._rows = rows
        self._block_size = block_size
        self._block_table = rows.block_table
        self._steps: dict[int, _Step] = {}
        self._is_refused = False

    def try_replay(self, batch: FlatBatch, token_ids: Tensor) -> Tensor | None:
        """hidden [T, hidden_size] of the batch, overwritten by the next replay; None: it must be computed plainly.

        token_ids: the batch's, pending ones filled in.
        """
        num_rows = len(token_ids)
        if self._is_refused or batch.num_decode < num_rows or num_rows > FEW_ROWS:
            return None
        if self._rows.block_table is not self._block_table:  # it has grown
            self._block_table = self._rows.block_table
            self._steps.clear()
        size = 1 << (num_rows - 1).bit_length()
        step = self._steps.get(size)
        if step is None:
            step = self._steps[size] = _Step(size, torch.from_numpy(self._block_table), self._block_size)
        step.fill(batch, token_ids)
        if step.recorded is None:
            step.recorded = self._recorder.record(lambda: self._compute(*step.inputs))
            self._is_refused = step.recorded is None
            return None if step.recorded is None else step.recorded.result[:num_rows]
        return step.recorded.replay()[:num_rows]


class _Step:
    """The inputs of `num_rows` decodes, and once there is one, their recording."""

    def __init__(self, num_rows: int, block_table: Tensor, block_size: int) -> None:
        self._token_ids, self._positions, self._slots, self._rows = (np.zeros(num_rows, np.int64) for _ in range(4))
        self._context_lens = np.zeros(num_rows, np.int32)
        token_ids, positions, slots, rows, context_lens = map(
            torch.from_numpy, (self._token_ids, self._positions, self._slots, self._rows, self._context_lens)
        )
        decode = decode_batch(block_table, context_lens, block_size, rows)
        self.inputs = token_ids, positions, AttentionInputs(cache_slots(slots, block_size), decode, None)
        self.recorded: RecordedLoops | None = None

    def fill(self, batch: FlatBatch, token_ids: Tensor) -> None:
        """The rest becomes padding."""
        _pad_into(self._token_ids, token_ids.numpy(), 0)
        _pad_into(self._positions, batch.positions, 0)
        _pad_into(self._slots, batch.slot_mapping, -1)
        _pad_into(self._rows, batch.rows, 0)
        _pad_into(self._context_lens, batch.context_lens, 0)


def _pad_into(place: npt.NDArray[Any], values: npt.NDArray[Any], filler: int) -> None:
    place[: len(values)], place[len(values) :] = values, filler
