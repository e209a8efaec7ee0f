from __future__ import annotations

import pytest
import torch

from service.runner.choices import number_format
from service.runner.choices.number_format import choose_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_dtype_on_request(name, dtype):
    assert choose_dtype(name, CPU, "float32") is dtype


def test_a_gpu_runs_bf16():
    assert choose_dtype("auto", torch.device("cuda"), "float32") is torch.bfloat16


@pytest.mark.parametrize("is_faster", [False, True])
@pytest.mark.parametrize("checkpoint", ["bfloat16", "float16", "float32"])
def test_a_cpu_runs_bf16_where_it_pays_and_costs_no_precision(checkpoint, is_faster, monkeypatch):
    monkeypatch.setattr(number_format, "can_pack", lambda dtype: True)
    pays = is_faster and checkpoint != "float32"
    bf16, fp32 = (1.0, 2.0) if is_faster else (2.0, 1.0)

    def timer(launches):
        return bf16 if launches[0].args[0].dtype is torch.bfloat16 else fp32

    assert choose_dtype("auto", CPU, checkpoint, timer) is (torch.bfloat16 if pays else torch.float32)


def test_a_cpu_without_packed_bf16_runs_fp32(monkeypatch):
    monkeypatch.setattr(number_format, "can_pack", lambda dtype: False)
    assert choose_dtype("auto", CPU, "bfloat16") is torch.float32


def test_the_timing_runs():
    assert choose_dtype("auto", CPU, "bfloat16") in (torch.bfloat16, torch.float32)
