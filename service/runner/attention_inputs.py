"""A flat batch's borders as the tensors that attention reads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.runner.selective_batching import FlatBatch


def attention_inputs(
    batch: FlatBatch, tensors: Mapping[str, Tensor], block_size: int, *, only_logits: bool = False
) -> AttentionInputs:
    """tensors: the batch's arrays on the device. Decodes and prompts are two launches: their best kernels differ.
    only_logits: of the last layer nothing is read but the rows of logits; there must be one."""
    border, num_seqs = batch.num_decode, batch.num_seqs
    block_table, context_lens = tensors["block_table"], tensors["context_lens"]
    decode = prefill = None
    if border:
        decode = decode_batch(block_table[:border], context_lens[:border], block_size)
    if border < num_seqs:
        query_lens = batch.query_starts[border + 1 :] - batch.query_starts[border:-1]
        prefill = prefill_batch(
            block_table[border:],
            tensors["query_starts"][border:],
            context_lens[border:],
            max_query_len=int(query_lens.max()),
            block_size=block_size,
        )
    slots = cache_slots(tensors["slot_mapping"], block_size)
    inputs = AttentionInputs(slots, decode, prefill)
    if only_logits:
        last = decode_batch(block_table, tensors["logit_lens"], block_size, tensors["logit_places"])
        inputs = inputs.read_at(tensors["logit_rows"], last)
    return inputs
