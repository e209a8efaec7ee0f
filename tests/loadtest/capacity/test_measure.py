from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.capacity.measure import main
from loadtest.capacity.replica_profile import read_profile
from tests.e2e.server_process import write_dummy_folder


def test_a_model_is_measured_and_the_plan_is_held_against_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("service.prediction.calibration.TIME_LIMIT_S", 0.3)
    folder = write_dummy_folder(tmp_path / "tiny")
    sizes = "--dtype float32 --load-format dummy --device cpu --max-num-seqs 16 --max-num-batched-tokens 512"
    options = [*sizes.split(), "--kv-cache-memory", str(1 << 24), "--num-requests", "12", "--max-model-len", "1024"]
    assert main([str(folder), "--out", str(tmp_path / "tiny.json"), *options, "--cpu-seconds", "--check", "0.5"]) == 0
    profile = read_profile(str(tmp_path / "tiny.json"))
    law = profile.law()
    taken_s = sum(timing.seconds for timing in profile.timings)
    assert sum(law.predicted_s(timing.workload) or 0 for timing in profile.timings) == pytest.approx(taken_s, rel=0.5)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if "TTFT" in line or "TPOT" in line or "requests/s" in line]
    assert len(rows) == 6, "the heading, the burst, and four figures at the rate"
    assert all(float(row[-1]) > 0 for row in rows[1:])


def test_what_cannot_be_measured_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path), "--out", str(tmp_path / "a.json")]) == 2
    assert "config.json" in capsys.readouterr().err
