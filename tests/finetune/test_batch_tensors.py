from __future__ import annotations

import torch

from service.finetune.batch_tensors import batch_tensors
from service.finetune.packing import packed
from service.layers.rotary import RopeConfig, RotaryEmbedding
from tests.finetune.served import random_examples


def rotary() -> RotaryEmbedding:
    embedding = RotaryEmbedding(RopeConfig(theta=100.0, rotary_dim=4))
    embedding.build(64, torch.device("cpu"))
    return embedding


def test_says_of_every_token_what_the_micro_batch_says():
    (batch,) = packed(random_examples(3, vocab_size=50, longest=20), 100)
    tensors = batch_tensors(batch, rotary(), torch.device("cpu"))
    num_tokens = int(batch.lengths.sum())
    assert tensors.token_ids[:num_tokens].tolist() == batch.token_ids[:num_tokens].tolist()
    assert tensors.targets.tolist() == [target for target in batch.targets.tolist() if target >= 0]
    assert batch.targets[tensors.trained_rows.numpy()].tolist() == tensors.targets.tolist()
    assert torch.equal(tensors.back_sin, -tensors.sin)


def test_sequences_fill_all_tokens_and_padding_is_one():
    (batch,) = packed(random_examples(3, vocab_size=50, longest=20), 100)
    tensors = batch_tensors(batch, rotary(), torch.device("cpu"))
    lengths, starts, longest = tensors.sequences
    assert lengths[:3] == tuple(batch.lengths.tolist())
    assert sum(lengths) == tensors.num_tokens
    assert tensors.num_tokens % 32 == 0
    assert tensors.num_tokens - int(batch.lengths.sum()) < 32, "the rest is cut off"
    assert starts.tolist() == [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    assert longest == max(lengths)


def test_a_full_micro_batch_has_no_padding():
    examples = random_examples(1, vocab_size=50, longest=20)
    (batch,) = packed(examples, len(examples[0].token_ids))
    tensors = batch_tensors(batch, rotary(), torch.device("cpu"))
    assert tensors.sequences.lengths == tuple(batch.lengths.tolist())
