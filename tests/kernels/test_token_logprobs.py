from __future__ import annotations

import pytest
import torch

from kernels.token_logprobs import token_logprobs, token_logprobs_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close

INF, NAN = float("inf"), float("nan")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's at infinities, in the interpreter


def check(logits, token_ids, num_top, lane):
    got = lane(token_logprobs, token_logprobs_triton)(lane.put(logits), lane.put(token_ids), num_top)
    chosen, top_ids, top = (t.cpu() for t in got)
    exact = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
    assert_close(chosen[token_ids >= 0], exact.gather(-1, token_ids.clamp(min=0)[:, None])[token_ids >= 0, 0])
    assert chosen[token_ids < 0].isnan().all()
    assert top.shape == top_ids.shape == (len(logits), num_top)
    assert_close(top, exact.sort(-1, descending=True).values[:, :num_top])
    assert_close(top, exact.gather(-1, top_ids))
    assert all(len(set(row)) == num_top for row in top_ids.tolist())


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size", "num_top"), [(0, 8, 2), (1, 1, 1), (17, 123, 0), (5, 300, 20), (2, 4200, 5)])
def test_follows_the_formula(rows, size, num_top, dtype, lane):
    token_ids = torch.randint(0, size, (rows,))
    token_ids[3:4] = -1
    check((torch.randn(rows, size) * 2).to(dtype), token_ids, num_top, lane)


@pytest.mark.parametrize("lane", LANES)
def test_ties_within_and_across_groups(lane):
    logits = torch.zeros(2, 700)
    logits[0, [5, 7, 130, 400, 401]] = 1
    logits[1] = torch.arange(700) // 3
    check(logits / 10, torch.tensor([7, 0]), 9, lane)


@pytest.mark.parametrize("lane", LANES)
def test_the_best_may_all_be_in_one_group(lane):
    logits = torch.randn(1, 700)
    logits[0, 130:150] += 20
    check(logits, torch.tensor([131]), 20, lane)


@pytest.mark.parametrize("lane", LANES)
def test_forbidden_tokens_have_no_mass(lane):
    logits = torch.full((1, 5000), -INF)
    logits[0, [3, 4500]] = torch.tensor([1.0, 1.0])
    run = lane(token_logprobs, token_logprobs_triton)
    chosen, top_ids, top = run(lane.put(logits), lane.put(torch.tensor([3])), 2)
    assert_close(chosen.cpu(), torch.tensor([0.5]).log())
    assert sorted(top_ids[0].tolist()) == [3, 4500]
    assert_close(top.cpu(), torch.tensor([[0.5, 0.5]]).log())


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("row", [[1, NAN, 9], [1, INF, 9], [-INF] * 3])
def test_rows_that_are_not_finite(row, lane):
    logits = lane.put(torch.tensor([row, [0.0, 50, 0]]))
    chosen, _, top = lane(token_logprobs, token_logprobs_triton)(logits, lane.put(torch.tensor([1, 1])), 2)
    assert chosen.isnan().tolist() == [True, False]
    assert top.isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_vocabulary(dtype, lane):
    check((torch.randn(9, 128256) * 3).to(dtype), torch.randint(0, 128256, (9,)), 20, lane)
