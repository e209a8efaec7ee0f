from __future__ import annotations

import os

import pytest
import torch

from service.errors import ConfigError
from service.runner import device as device_module
from service.runner.device import available_cores, choose_device, choose_dtype, use_cores

CPU = torch.device("cpu")


def test_cpu_on_request():
    assert choose_device("cpu").type == "cpu"


def test_auto_takes_what_there_is():
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_cuda_on_request_must_exist():
    with pytest.raises(ConfigError, match="device: cuda"):
        choose_device("cuda")


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_dtype_on_request(name, dtype):
    assert choose_dtype(name, CPU, "float32") is dtype


def test_a_gpu_runs_bf16():
    assert choose_dtype("auto", torch.device("cuda"), "float32") is torch.bfloat16


@pytest.mark.parametrize("is_faster", [False, True])
@pytest.mark.parametrize("checkpoint", ["bfloat16", "float16", "float32"])
def test_a_cpu_runs_bf16_where_it_pays_and_costs_no_precision(checkpoint, is_faster, monkeypatch):
    monkeypatch.setattr(device_module, "can_pack", lambda dtype: True)
    monkeypatch.setattr(device_module, "_bf16_is_faster", lambda: is_faster)
    pays = is_faster and checkpoint != "float32"
    assert choose_dtype("auto", CPU, checkpoint) is (torch.bfloat16 if pays else torch.float32)


def test_a_cpu_without_packed_bf16_runs_fp32(monkeypatch):
    monkeypatch.setattr(device_module, "can_pack", lambda dtype: False)
    assert choose_dtype("auto", CPU, "bfloat16") is torch.float32


def test_the_timing_runs():
    assert choose_dtype("auto", CPU, "bfloat16") in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("text", "quota"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_cores_follow_the_quota(text, quota, tmp_path):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert available_cores(file) == (min(own, quota) if quota else own)


def test_threads_are_the_cores_unless_the_environment_says_otherwise(monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert use_cores(CPU) == available_cores()
        torch.set_num_threads(1)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert use_cores(CPU) == 1
    finally:
        torch.set_num_threads(before)


def test_a_quota_beyond_the_cores_gives_no_more_of_them(tmp_path):
    (tmp_path / "cpu.max").write_text("100000000 100\n")
    assert available_cores(tmp_path / "cpu.max") == available_cores(tmp_path / "none")
