from __future__ import annotations

import pytest
import torch

from service.layers.shard import Shard, even_share, kv_head_share, local, vocab_share
from service.layers.tensor_parallel import Alone
from service.layers.vocab_division import vocab_share_size


class Rank(Alone):
    """One that is asked for its part only, never for the others'."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def ranks(size: int) -> list[Rank]:
    return [Rank(rank, size) for rank in range(size)]


def test_a_part_is_what_its_ranges_name():
    whole = torch.arange(24).view(4, 6)
    shard = Shard(1, 6, (range(2), range(4, 5)))
    assert torch.equal(shard.of(whole), whole[:, [0, 1, 4]])
    assert torch.equal(shard.transposed().of(whole.T), whole[:, [0, 1, 4]].T)
    assert shard.whole_shape((4, 3)) == (4, 6)
    assert Shard(0, 6, ()).whole_shape((0,)) == (6,)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_even_shares_are_the_whole_in_order(size):
    assert [i for rank in ranks(size) for i in even_share(12, rank)] == [*range(12)]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_each_rank_has_the_kv_heads_that_its_query_heads_attend_to(num_kv_heads, size):
    num_heads = 16
    group = num_heads // num_kv_heads
    for rank in ranks(size):
        heads = even_share(num_heads, rank)
        kv_heads = kv_head_share(num_kv_heads, rank)
        assert [*kv_heads] == sorted({head // group for head in heads})
        own_group = len(heads) // len(kv_heads)
        for place, head in enumerate(heads):
            assert kv_heads[place // own_group] == head // group, "the head that attention takes for it"


@pytest.mark.parametrize("vocab_size", [112, 301, 50257, 128256])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ids_are_divided_in_order_and_begin_where_noise_does(vocab_size, size):
    shares = [vocab_share(vocab_size, rank) for rank in ranks(size)]
    assert [i for share in shares for i in share] == [*range(vocab_size)]
    assert all(share.start % 4 == 0 and 0 < len(share) <= vocab_share_size(vocab_size, size) for share in shares)
    assert all(len(share) == vocab_share_size(vocab_size, size) for share in shares[:-1])


def test_ranges_of_a_merged_matrix_by_its_parts():
    kept = (range(2, 4), range(10, 11), range(14, 20))
    assert local(kept, 0, 8) == (range(2, 4),)
    assert local(kept, 8, 4) == (range(2, 3),)
    assert local(kept, 12, 4) == (range(2, 4),)
    assert local(kept, 16, 4) == (range(4),)


@pytest.mark.parametrize("by", [1, 3, 8])
def test_of_a_coarser_tensor_it_is_what_goes_with_the_same_indices(by):
    """Index i of the one goes with i // by of the other."""
    whole = torch.arange(50)
    for ranges in ((range(24),), (range(24, 50),), (range(24), range(48, 50)), ()):
        shard = Shard(0, 50, ranges)
        coarser = shard.coarser(by)
        assert coarser is not None
        own, groups = shard.of(whole) // by if ranges else whole[:0], torch.arange(-(-50 // by))
        assert coarser.size == len(groups)
        assert (coarser.of(groups) if ranges else whole[:0]).tolist() == own.unique().tolist()
    assert Shard(0, 50, (range(1, 24),)).coarser(3) is None
    assert Shard(0, 50, (range(25),)).coarser(3) is None
