from __future__ import annotations

import pytest
import torch

from service.core.training import MOST_GRAPH_TOKENS
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


@pytest.mark.parametrize(("longest", "micro_batch_tokens"), [(20, 20), (20, 100), (60, 300), (60, 2000)])
def test_in_few_sizes_there_are_tokens_and_sequences_that_are_nobodys(longest: int, micro_batch_tokens: int):
    batch = packed(random_examples(30, vocab_size=50, longest=longest), micro_batch_tokens)[0]
    usual = batch_tensors(batch, rotary(), torch.device("cpu"))
    tensors = batch_tensors(batch, rotary(), torch.device("cpu"), in_few_sizes=True)
    lengths, starts, longest = tensors.sequences
    num_examples = len(batch.lengths)
    assert lengths[:num_examples] == tuple(batch.lengths.tolist())
    assert sum(length > 0 for length in lengths[num_examples:]) <= 1
    assert tensors.num_tokens in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, micro_batch_tokens)
    assert len(lengths) in (2, 4, 8, 16, 32)
    assert starts.tolist() == [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    assert starts[-1] == tensors.num_tokens == longest
    assert torch.equal(tensors.targets, usual.targets) and torch.equal(tensors.trained_rows, usual.trained_rows)


def test_beyond_what_graphs_compute_there_are_not_few_sizes():
    (batch,) = packed(random_examples(90, vocab_size=50, longest=60), 4000)
    assert batch.lengths.sum() > MOST_GRAPH_TOKENS
    usual, tensors = (
        batch_tensors(batch, rotary(), torch.device("cpu"), in_few_sizes=in_few_sizes) for in_few_sizes in (False, True)
    )
    assert tensors.sequences.lengths == usual.sequences.lengths


def test_another_batch_of_the_size_is_copied_to_the_same_addresses():
    (first,), (second,) = (packed(random_examples(3, 50, 20, seed), 64) for seed in (0, 1))
    place, other = (batch_tensors(each, rotary(), torch.device("cpu"), in_few_sizes=True) for each in (first, second))
    assert place.size == other.size
    copied = place.copy_from(other)
    for name in ("token_ids", "cos", "sin", "back_sin"):
        assert torch.equal(getattr(copied, name), getattr(other, name))
        assert getattr(copied, name).data_ptr() == getattr(place, name).data_ptr()
    assert torch.equal(copied.sequences.starts, other.sequences.starts)
    assert copied.sequences.lengths == other.sequences.lengths
    assert copied.sequences.starts.data_ptr() == place.sequences.starts.data_ptr()
    assert copied.targets is other.targets and copied.trained_rows is other.trained_rows
