from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from service.doctor import accelerator
from service.doctor.accelerator import check_compiler, check_gpu, check_torch, compile_complaint
from service.doctor.finding import Verdict
from service.settings.settings import Settings


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is a GPU's device file, whatever torch may see of it."""
    (tmp_path / "nvidiactl").write_text("")
    monkeypatch.setattr(accelerator, "GPU", tmp_path / "nvidiactl")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerator, "GPU", tmp_path / "nothing")


def test_without_a_gpu_a_cpu_will_do_unless_a_gpu_is_asked_for(no_gpu: None):
    for check in (check_torch, check_gpu, check_compiler):
        assert [finding.verdict for finding in check(Settings())] == [Verdict.OK]
    assert [finding.verdict for finding in check_gpu(Settings(device="cuda"))] == [Verdict.FAULT]


def test_a_gpu_that_torch_cannot_use_is_a_fault_and_says_whose(gpu: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    (cpu_build,) = check_torch(Settings())
    assert (cpu_build.verdict, "build for CUDA" in cpu_build.mend) == (Verdict.FAULT, True)
    assert [finding.verdict for finding in check_torch(Settings(device="cpu"))] == [Verdict.OK]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (driver,) = check_torch(Settings())
    assert (driver.verdict, "driver that has CUDA 13.0" in driver.mend) == (Verdict.FAULT, True)


def test_a_torch_that_does_not_import_is_told(no_gpu: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [finding.verdict for finding in check_torch(Settings())] == [Verdict.FAULT]


def test_beside_a_gpu_there_has_to_be_a_compiler(gpu: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerator, "version", lambda name: "3.6")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert [finding.verdict for finding in check_compiler(Settings())] == [Verdict.OK, Verdict.FAULT]
    monkeypatch.setenv("CC", "false")
    (_, broken) = check_compiler(Settings())
    assert (broken.verdict, "status 1" in broken.found) == (Verdict.FAULT, True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_a_compiler_is_tried():
    assert compile_complaint("cc") == ""
    assert compile_complaint("no-such-compiler") != ""
