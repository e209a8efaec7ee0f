from __future__ import annotations

import pytest
import torch

from kernels.apply_logit_bias import apply_logit_bias, apply_logit_bias_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entries", [0, 1, 17, 300])
def test_adds_each_value_to_its_logit_alone(entries, dtype, lane):
    logits = torch.randn(6, 123).to(dtype)
    cells = torch.randperm(5 * 123)[:entries]  # the last row has no entry
    rows, token_ids = (cells // 123).to(torch.int32), (cells % 123).to(torch.int32)
    rows[2:4] = -1
    values = torch.randn(entries)
    want = logits.double()
    for row, token, value in zip(rows.tolist(), token_ids.tolist(), values.tolist(), strict=True):
        if row >= 0:
            want[row, token] += value
    on_device = lane.put(logits)
    arguments = [lane.put(t) for t in (rows, token_ids, values)]
    lane(apply_logit_bias, apply_logit_bias_triton)(on_device, *arguments)
    assert_close(on_device.cpu(), want)
    assert torch.equal(on_device[5].cpu(), logits[5])


@pytest.mark.parametrize("lane", LANES)
def test_a_forbidden_token_stays_forbidden(lane):
    logits = lane.put(torch.tensor([[float("-inf"), 0.0]]))
    arguments = [lane.put(torch.tensor([0], dtype=torch.int32)), lane.put(torch.tensor([0], dtype=torch.int32))]
    lane(apply_logit_bias, apply_logit_bias_triton)(logits, *arguments, lane.put(torch.tensor([100.0])))
    assert logits.tolist() == [[float("-inf"), 0.0]]
