"""Draws by shards of the vocabulary are those of one rank, bit for bit."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from service.layers.shard import vocab_share, vocab_share_size
from service.sampling.sampler import SamplingBatch, sample
from service.sampling.sampling_extras import LogitBias, SamplingExtras, draw
from service.sampling.vocab_shard import VocabShard
from tests.layers.test_shard import ranks

VOCAB_SIZE = 301


class Exchange:
    """`all_gather` of threads, and how many bytes each has given."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.num_bytes = 0

    def of(self, rank: int):
        def all_gather(x):
            self._parts[rank] = x
            self._barrier.wait(60)
            gathered = torch.stack(self._parts)
            self._barrier.wait(60)
            if rank == 0:
                self.num_bytes += x.nbytes
            return gathered

        return all_gather


def by_ranks(size, logits, work):
    """What `work(its logits, its shard)` gives on every rank, and the bytes that one has given. Behind the last ids'
    logits stands NaN."""
    exchange = Exchange(size)
    width = vocab_share_size(VOCAB_SIZE, size)
    results = [None] * size

    def run(rank):
        ids = vocab_share(VOCAB_SIZE, rank)
        own = torch.full((len(logits), width), math.nan, dtype=logits.dtype)
        own[:, : len(ids)] = logits[:, ids.start : ids.stop]
        results[rank.rank] = work(own, VocabShard(ids, VOCAB_SIZE, exchange.of(rank.rank)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(result is not None for result in results)
    return results, exchange.num_bytes


def batch(num_rows, temperature, **known):
    columns = {
        "temperature": torch.tensor(temperature).repeat(num_rows)[:num_rows],
        "top_k": torch.zeros(num_rows, dtype=torch.int32),
        "top_p": torch.ones(num_rows),
        "min_p": torch.zeros(num_rows),
        "seeds": torch.arange(num_rows) * 10**12 + 3,
        "sample_positions": torch.arange(num_rows) + 5,
    }
    return SamplingBatch(columns, is_greedy=not any(temperature), **known)


def hostile_logits(dtype, spread):
    """Rows that are drawn from as rows are, and such as tie, forbid, or cannot be drawn from."""
    logits = (torch.randn(40, VOCAB_SIZE) * spread).to(dtype)
    logits[0] = 0.0
    logits[1] = -math.inf
    logits[2, :200] = -math.inf  # all of a rank's
    logits[3, 200:] = -math.inf
    logits[4, 300] = math.nan
    logits[5, 3] = math.inf
    logits[6, [0, 300]] = 50.0  # a tie between the first rank and the last
    logits[7] = -200.0
    logits[7, 299] = 0.0
    return logits


@pytest.mark.pairwise
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [[0.0], [1.0], [0.0, 0.3, 1.7]], ids=["greedy", "drawn", "both"])
@pytest.mark.parametrize("spread", [2, 30], ids=["most tokens can win", "few can"])
def test_unfiltered_draws_are_those_of_one_rank(size, dtype, temperature, spread):
    logits = hostile_logits(dtype, spread)
    parameters = batch(len(logits), temperature, is_unfiltered=True)
    want = sample(logits, parameters)
    results, num_bytes = by_ranks(size, logits, lambda own, shard: sample(own, parameters, shard=shard))
    for got in results:
        assert torch.equal(got, want)
    assert num_bytes == len(logits) * (8 if parameters.is_greedy else 16), "not the logits"


@pytest.mark.parametrize("size", [2, 4])
def test_where_a_filter_may_be_all_logits_are_looked_at(size):
    logits = torch.randn(12, VOCAB_SIZE)
    parameters = batch(12, [0.8, 0.0])
    parameters.columns["top_p"][:] = 0.6
    parameters.columns["top_k"][::3] = 5
    want = sample(logits, parameters)
    for got in by_ranks(size, logits, lambda own, shard: sample(own, parameters, shard=shard))[0]:
        assert torch.equal(got, want)


def test_what_changes_logits_changes_those_of_all_ranks():
    logits = torch.randn(6, VOCAB_SIZE)
    parameters = batch(6, [0.8, 0.0], is_unfiltered=True)
    rows, token_ids = torch.tensor([0, 1, 4], dtype=torch.int32), torch.tensor([300, 20, 160], dtype=torch.int32)
    bias = LogitBias(rows, token_ids, torch.tensor([30.0, 30.0, 30.0]))
    for extras in (SamplingExtras(bias=bias, num_top=8), SamplingExtras(num_top=0), SamplingExtras(has_min_p=True)):
        want = draw(logits.clone(), parameters, extras)
        for got in by_ranks(2, logits, lambda own, shard, e=extras: draw(own, parameters, e, shard))[0]:
            assert torch.equal(got.token_ids, want.token_ids)
            assert (got.logprobs is None) is (want.logprobs is None)
            for mine, others in zip(got.logprobs or (), want.logprobs or (), strict=True):
                assert torch.equal(mine, others)


def test_padding_is_in_no_row():
    logits = torch.randn(5, VOCAB_SIZE)
    for whole in by_ranks(3, logits, lambda own, shard: shard.whole(own))[0]:
        assert torch.equal(whole, logits)
        assert whole.stride(-1) == 1
