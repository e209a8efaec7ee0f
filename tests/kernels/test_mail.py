"""What sums are made of. tests/kernels/test_one_shot_all_reduce.py launches them one behind another."""

from __future__ import annotations

import pytest
import torch

from kernels.mail import MailConfig, normed_rows, plain_rows
from tests.kernels.rank_kernels import interpreted_of_little, interpreted_values
from tests.kernels.test_one_shot_all_reduce import INTERPRETED, check
from tests.ranks import Ranks

BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def remarkable(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, the least and the greatest numbers, infinities, and NaNs, one of which has all bits. Nothing subnormal,
    which the interpreter cuts to zero in bf16."""
    bits = torch.tensor([0, -1], dtype=BITS[dtype]).view(dtype)
    info = torch.finfo(dtype)
    numbers = torch.tensor([-0.0, info.max, -info.max, info.tiny, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    return torch.cat([bits, numbers])


@pytest.mark.interpret
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_number_arrives_and_every_nan_as_one(two_ranks: Ranks, tmp_path, dtype):
    values = remarkable(dtype)
    for sums, mail in two_ranks.run(interpreted_values, tmp_path, [values, torch.zeros_like(values)]):
        for total in sums:
            assert torch.equal(total.isnan(), values.isnan())
            assert torch.equal(total[~values.isnan()], values[~values.isnan()])
        assert not mail.any(), "no place is left full"


@pytest.mark.interpret
def test_rows_that_have_no_room_go_in_another_launch(two_ranks: Ranks, tmp_path):
    shapes = [("one", (20000,)), ("two", (20000,)), ("one normed", (9, 1000)), ("two normed", (9, 1000))]
    given = [(kind, shape, torch.float32) for kind, shape in shapes]
    for results, _ in two_ranks.run(interpreted_of_little, tmp_path, given):
        check(given, results, INTERPRETED)


def test_parts_are_all_rows_in_order():
    x, weight = torch.randn(7, 8), torch.ones(8)
    rows = normed_rows(x, torch.randn(7, 8), weight, 1e-5)
    assert list(rows.in_parts(7)) == [rows]
    parts = list(rows.in_parts(3))
    assert [part.num_rows for part in parts] == [3, 3, 1]
    for name in ("x", "residual", "out"):
        whole = getattr(rows, name)
        assert torch.cat([getattr(part, name) for part in parts]).data_ptr() != whole.data_ptr()
        assert [getattr(part, name).data_ptr() for part in parts] == [whole[first].data_ptr() for first in (0, 3, 6)]
    assert not list(plain_rows(x[:0]).in_parts(1))
    with pytest.raises(AssertionError, match="room"):
        list(rows.in_parts(0))


def test_longer_rows_take_more_warps_and_fewer_programs_so_that_all_run_at_once():
    config = MailConfig(programs=256, num_warps=8, ahead=0)
    assert [config.of_rows(size) for size in (64, 1000, 2048, 4096)] == [(256, 1), (256, 4), (256, 8), (256, 8)]
    assert [config.of_rows(size) for size in (5120, 8192, 16384)] == [(128, 16)] * 3
