from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.capacity.lane import Layout, lane_of
from loadtest.capacity.measure import main
from loadtest.capacity.replica_profile import WindowedLayers, read_profile
from tests.e2e.server_process import DUMMY_CONFIG, write_dummy_folder


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
    predictor = profile.predictor()
    taken_s = sum(timing.seconds for timing in profile.timings)
    predicted_s = sum(predictor.predicted_s(timing.workload) or 0 for timing in profile.timings)
    assert predicted_s == pytest.approx(taken_s, rel=0.5)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if "TTFT" in line or "TPOT" in line or "requests/s" in line]
    assert len(rows) == 6, "the heading, the burst, and four figures at the rate"
    assert all(float(row[-1]) > 0 for row in rows[1:])


def test_layers_that_give_blocks_back_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("service.prediction.calibration.TIME_LIMIT_S", 0.1)
    folder = write_dummy_folder(tmp_path / "tiny")
    gemma = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 64, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps({**DUMMY_CONFIG, **gemma}))
    sizes = "--dtype float32 --load-format dummy --device cpu --max-num-seqs 16 --max-num-batched-tokens 512"
    options = [*sizes.split(), "--kv-cache-memory", str(1 << 22), "--num-requests", "12", "--max-model-len", "1024"]
    assert main([str(folder), "--out", str(tmp_path / "tiny.json"), *options, "--cpu-seconds"]) == 0
    profile = read_profile(str(tmp_path / "tiny.json"))
    assert profile.windowed == WindowedLayers(window_tokens=64, num_full_groups=1, num_windowed_groups=1)
    block_bytes = 2 * 16 * 2 * 16 * 4
    assert profile.kv_tokens == (1 << 22) // block_bytes // 2 * 16
    assert lane_of(profile, Layout(1, 1)).room.num_blocks == (1 << 22) // block_bytes // 2 * 2


def test_what_cannot_be_measured_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path), "--out", str(tmp_path / "a.json")]) == 2
    assert "config.json" in capsys.readouterr().err
