from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels import sum_order
from kernels.skinny_linear import new_arrivals
from kernels.sum_order import cublas_agrees, few_rows_agree, launch_few_rows
from kernels.unsplit_linear import unsplit_product
from tests.kernels.lanes import GPU

FEATURES, SIZE = 96, 512


@pytest.fixture
def fakes(monkeypatch):
    """Products by torch in place of tiles' and cuBLAS's. They agree, but for a row that is asked to be another's."""
    wrong = {"few": None, "cublas": None}

    def product(name, x, weight):
        out = F.linear(x.double(), weight.double()).to(x.dtype)
        if len(x) == wrong[name]:  # its last bit
            last = out[-1:].view(torch.int16)
            last[0, 3] ^= 1
        return out

    def by_tiles(x, weight, bias=None, arrivals=None, config=None):
        return product("few", x, weight) if config is None else F.linear(x.double(), weight.double()).to(x.dtype)

    monkeypatch.setattr(sum_order, "ordered_linear_triton", by_tiles)
    monkeypatch.setattr(sum_order, "unsplit_product", lambda x, weight, parts: product("cublas", x, weight))
    return wrong


def test_one_bit_of_one_row_tells_another_order(fakes):
    weight = torch.randn(FEATURES, SIZE).bfloat16()
    arrivals = new_arrivals(FEATURES, weight.device)
    assert few_rows_agree(weight, arrivals) and cublas_agrees(weight, 4096)
    for rows in (16, 64):
        fakes["few"] = rows
        assert not few_rows_agree(weight, arrivals)
    fakes["few"] = None
    for rows in (65, 256, 2048):
        fakes["cublas"] = rows
        assert not cublas_agrees(weight, 4096)
        assert cublas_agrees(weight, rows - 1)
    assert few_rows_agree(weight, arrivals)


def test_where_no_step_has_many_rows_cublas_is_not_asked(fakes):
    assert cublas_agrees(torch.randn(FEATURES, SIZE).bfloat16(), 64)


def test_what_is_launched_ahead_is_what_is_compared(fakes, monkeypatch):
    launched, multiply = [], sum_order.ordered_linear_triton

    def noted(x, weight, bias=None, arrivals=None, config=None):
        launched.append((len(x), config))
        return multiply(x, weight, bias, arrivals, config)

    monkeypatch.setattr(sum_order, "ordered_linear_triton", noted)
    weight = torch.randn(FEATURES, SIZE).bfloat16()
    arrivals = new_arrivals(FEATURES, weight.device)
    launch_few_rows(weight, arrivals)
    ahead, launched[:] = set(launched), []
    assert few_rows_agree(weight, arrivals) and set(launched) == ahead


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("features", "size"), [(6144, 4096), (4096, 14336), (1024, 8192), (28672, 4096)])
@torch.inference_mode()
def test_here_they_agree_and_a_split_k_does_not(features, size, lane, monkeypatch):
    weight = lane.put((torch.randn(features, size) * size**-0.5).bfloat16())
    assert few_rows_agree(weight, new_arrivals(features, weight.device)) and cublas_agrees(weight, 2048)
    monkeypatch.setattr(sum_order, "unsplit_product", lambda x, weight, parts: unsplit_product(x, weight, 2 * parts))
    assert not cublas_agrees(weight, 2048)
