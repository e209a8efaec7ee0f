"""A flat batch's borders as the tensors that attention reads."""

from __future__ import annotations

import torch

from service.layers.attention import AttentionInputs, DecodeInputs, PrefillInputs
from service.runner.selective_batching import FlatBatch
from service.runner.staging import to_device


def attention_inputs(batch: FlatBatch, device: torch.device) -> AttentionInputs:
    """On `device`. Decodes and prompts are two launches: their best kernels differ."""
    border, num_seqs = batch.num_decode, len(batch.context_lens)
    block_table = to_device(batch.block_table, device)
    context_lens = to_device(batch.context_lens, device)
    decode = prefill = None
    if border:
        decode = DecodeInputs(block_table[:border], context_lens[:border])
    if border < num_seqs:
        starts = batch.query_starts[border:] - border
        prefill = PrefillInputs(
            block_table[border:],
            to_device(starts, device),
            context_lens[border:],
            max_query_len=int((starts[1:] - starts[:-1]).max()),
        )
    return AttentionInputs(to_device(batch.slot_mapping, device), border, decode, prefill)
