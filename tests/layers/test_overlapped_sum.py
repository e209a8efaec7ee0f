from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers.linear_method import KernelMethod, PackedMethod, PlainMethod
from service.layers.overlapped_sum import ArrivingNorm, ArrivingRows, arrived, half_of
from service.layers.packed_weight import WeightForm, pack_weight

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def in_parts(x: torch.Tensor, *borders: int) -> ArrivingNorm:
    return ArrivingNorm(tuple(ArrivingRows(rows, rows, None) for rows in x.tensor_split(borders)))


def methods(weight: torch.Tensor, bias: torch.Tensor | None):
    yield PlainMethod(weight, bias)
    yield KernelMethod(weight, bias, torch.zeros(1, dtype=torch.int32))
    if not weight.is_cuda:
        yield PackedMethod(pack_weight(weight, WeightForm.ONEDNN), bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_bias", [False, True])
@torch.inference_mode()
def test_rows_that_arrive_in_parts_are_multiplied_as_all_at_once(has_bias: bool, device: str):
    x, weight = torch.randn(300, 64, device=device), torch.randn(96, 64, device=device)
    bias = torch.randn(96, device=device) if has_bias else None
    for method in methods(weight, bias):
        assert method.takes_parts
        for borders in ((150,), (1,), (128, 299)):
            got = method.multiply(in_parts(x, *borders))
            torch.testing.assert_close(got, F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)


def test_halves_have_whole_tiles_where_there_are_many_rows():
    for num_rows in (2, 3, 17, 256, 257, 300, 2047, 2048, 4096, 5000):
        half = half_of(num_rows)
        assert 0 < half < num_rows and abs(2 * half - num_rows) <= 256
        assert num_rows <= 256 or half % 128 == 0


def test_the_sum_takes_the_residuals_storage_wherever_it_was_computed():
    x, norm, total = torch.randn(3, 3, 4)
    for other in (False, True):
        residual = torch.zeros(3, 4)
        where = residual if other else torch.empty(3, 4)
        where.copy_(total)
        rows = arrived(x, residual, norm, where)
        assert rows.wait() is norm
        assert torch.equal(residual, total)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_product_waits_for_the_rows_that_arrive_on_another_stream():
    """The other stream fills them late."""
    weight = torch.randn(64, 64, device="cuda")
    stream, want = torch.cuda.Stream(priority=-1), torch.ones(512, 64, device="cuda")
    for _ in range(20):
        rows = torch.zeros(512, 64, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            rows.fill_(1.0)
            ready = stream.record_event()
        norm = ArrivingNorm((ArrivingRows(rows, rows, ready),))
        torch.testing.assert_close(PlainMethod(weight, None).multiply(norm), F.linear(want, weight))
