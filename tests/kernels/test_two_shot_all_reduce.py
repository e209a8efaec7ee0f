"""tests/kernels/test_one_shot_all_reduce.py launches both kernels in turn; here, this one alone, of few rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.rank_kernels import interpreted
from tests.kernels.test_one_shot_all_reduce import INTERPRETED, check
from tests.ranks import Ranks


@pytest.mark.interpret
def test_a_rank_may_have_nothing_to_sum(two_ranks: Ranks, tmp_path):
    given = [("two", shape, torch.float32) for shape in ((1,), (64,), (4097,), (130,), (9000,))]
    for results, _ in two_ranks.run(interpreted, tmp_path, given):
        check(given, results, INTERPRETED)


@pytest.fixture
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.mark.load
@pytest.mark.interpret
def test_four_ranks_have_rows_for_all_or_for_some(four_ranks: Ranks, tmp_path):
    shapes = [("two normed", (rows, 64), torch.float32) for rows in (1, 6, 9)]
    given = [*shapes, ("one normed", (3, 64), torch.float32), ("two", (20000,), torch.float32)]
    for results, _ in four_ranks.run(interpreted, tmp_path, given):
        check(given, results, INTERPRETED, 4)
