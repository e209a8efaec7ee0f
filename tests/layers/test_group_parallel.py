from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm_reference
from service.layers import group_parallel
from tests.ranks import Ranks


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(rank)).to(dtype)


def sums(parallel, dtype):
    return parallel.all_reduce(values(parallel.rank, dtype)), parallel.all_reduce(torch.empty(0, 7, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_the_same_everywhere_bit_for_bit(two_ranks: Ranks, dtype):
    want = (values(0, dtype).float() + values(1, dtype).float()).to(dtype)
    for total, of_nothing in two_ranks.run(sums, dtype):
        assert total.dtype is dtype
        assert torch.equal(total, want)
        assert of_nothing.shape == (0, 7)


def normed(parallel):
    residual, weight = values(7, torch.float32), values(8, torch.float32)[0]
    return parallel.all_reduce_add_norm(values(parallel.rank, torch.float32), residual, weight, 1e-5)


def test_a_sum_is_added_and_normed_as_one_ranks(two_ranks: Ranks):
    total = values(0, torch.float32) + values(1, torch.float32)
    want = add_rms_norm_reference(total, values(7, torch.float32), values(8, torch.float32)[0], 1e-5)
    for got in two_ranks.run(normed):
        torch.testing.assert_close(got, want)


def gathered(parallel):
    x = values(parallel.rank, torch.bfloat16)
    columns = parallel.all_gather(x[:, 2:4])  # not contiguous
    return parallel.all_gather(torch.tensor([parallel.rank])), columns, x


def test_what_is_gathered_is_in_the_order_of_ranks(two_ranks: Ranks):
    answers = two_ranks.run(gathered)
    for ranks, columns, _ in answers:
        assert ranks.tolist() == [[0], [1]]
        assert torch.equal(columns, torch.stack([x[:, 2:4] for *_, x in answers]))


def agreed(parallel, numbers, texts):
    return parallel.rank, parallel.size, parallel.least(numbers[parallel.rank]), parallel.of_first(texts[parallel.rank])


@pytest.mark.parametrize("text", ["", "ä text\n", "x" * 100_000])
def test_ranks_agree_on_the_least_number_and_on_the_first_ones_text(two_ranks: Ranks, text):
    for rank, answer in enumerate(two_ranks.run(agreed, (2**40 + 1, 2**40), (text, "another"))):
        assert answer == (rank, 2, 2**40, text)


def memory_where_one_cannot(parallel):
    """Rank 1's GPU does not see rank 0's; rank 0's sees it."""
    asked = list[tuple[int, list[int]]]()

    def can_exchange(device: torch.device, peers: list[int]) -> bool:
        asked.append((device.index, peers))
        return parallel.rank == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_parallel, "can_exchange", can_exchange)
        patch.setattr(group_parallel.SymmetricMemory, "of_group", lambda *where: 1 / 0)
        group = torch.distributed.group.WORLD
        return group_parallel.memory_of_gpus(group, group, torch.device("cuda", 2 + parallel.rank)), asked


def test_where_one_gpu_cannot_address_another_all_leave_the_sums_to_nccl(two_ranks: Ranks):
    """And none begins what the others do not."""
    assert two_ranks.run(memory_where_one_cannot) == [(None, [(2, [3])]), (None, [(3, [2])])]
