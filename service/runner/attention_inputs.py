"""A flat batch's borders as the tensors that attention reads."""

from __future__ import annotations

import torch

from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.runner.selective_batching import FlatBatch
from service.runner.staging import to_device


def attention_inputs(batch: FlatBatch, block_size: int, device: torch.device) -> AttentionInputs:
    """On `device`. Decodes and prompts are two launches: their best kernels differ."""
    border, num_seqs = batch.num_decode, len(batch.context_lens)
    block_table = to_device(batch.block_table, device)
    context_lens = to_device(batch.context_lens, device)
    decode = prefill = None
    if border:
        decode = decode_batch(block_table[:border], context_lens[:border], block_size)
    if border < num_seqs:
        starts = batch.query_starts[border:] - border
        prefill = prefill_batch(
            block_table[border:],
            to_device(starts, device),
            context_lens[border:],
            max_query_len=int((starts[1:] - starts[:-1]).max()),
            block_size=block_size,
        )
    slots = cache_slots(to_device(batch.slot_mapping, device), block_size)
    return AttentionInputs(slots, border, decode, prefill)
