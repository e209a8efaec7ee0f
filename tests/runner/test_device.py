from __future__ import annotations

import os

import pytest
import torch

from service.errors import ConfigError
from service.runner.device import available_cores, choose_device, use_cores

CPU = torch.device("cpu")


def test_cpu_on_request():
    assert choose_device("cpu").type == "cpu"


def test_auto_takes_what_there_is():
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_cuda_on_request_must_exist():
    with pytest.raises(ConfigError, match="device: cuda"):
        choose_device("cuda")


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
        assert [use_cores(CPU, num_ranks) for num_ranks in (available_cores(), 1000)] == [1, 1]
        torch.set_num_threads(1)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert use_cores(CPU) == 1
    finally:
        torch.set_num_threads(before)


def test_a_quota_beyond_the_cores_gives_no_more_of_them(tmp_path):
    (tmp_path / "cpu.max").write_text("100000000 100\n")
    assert available_cores(tmp_path / "cpu.max") == available_cores(tmp_path / "none")
