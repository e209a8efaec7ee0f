"""The inputs of a decode step at fixed places on the device, for a fixed number of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.runner.decode_rows import DecodeRows, empty_rows, pad_into
from service.runner.staging import layout, part_of
from service.sampling.sampler import SamplingBatch


class DecodeInputs:
    """What a CUDA graph reads: it was captured with these tensors, and `fill` changes what they hold.

    token_ids, positions, rows [N] int64; rows of SequenceRows. attention: over `block_table`, which has the same rows.
    sampling: for all rows at once, whatever their parameters.
    """

    def __init__(self, num_rows: int, block_table: Tensor, block_size: int) -> None:
        self._like = empty_rows(num_rows)
        self._offsets, num_bytes = layout({n: a.nbytes for n, a in self._like._asdict().items()})
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=block_table.device)
        parts = {n: part_of(self._buffer, self._offsets[n], a) for n, a in self._like._asdict().items()}
        self.num_rows = num_rows
        self.token_ids, self.positions, self.rows = parts["token_ids"], parts["positions"], parts["rows"]
        decode = decode_batch(block_table, parts["context_lens"], block_size, self.rows)
        self.attention = AttentionInputs(cache_slots(parts["slots"], block_size), num_rows, decode, None)
        self.sampling = SamplingBatch(
            temperature=parts["temperature"],
            top_k=parts["top_k"],
            top_p=parts["top_p"],
            seeds=parts["seeds"],
            positions=parts["sample_positions"],
            is_greedy=False,
        )
        self.fill(empty_rows(0))

    def fill(self, values: DecodeRows) -> None:
        """At most `num_rows` of them; the others are padding. One copy, behind what the device has still to do."""
        staged = torch.empty(self._buffer.shape, dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        memory = staged.numpy()
        parts = (
            memory[self._offsets[n] : self._offsets[n] + a.nbytes].view(a.dtype)
            for n, a in self._like._asdict().items()
        )
        pad_into(DecodeRows(*parts), values)
        self._buffer.copy_(staged, non_blocking=True)
