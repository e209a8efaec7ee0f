from __future__ import annotations

import json

from loadtest.bench.decode_steps import load, main, measure
from tests.models.test_model_config import FIELDS


def test_prints_a_row_for_each_batch_and_json_last(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    main([str(tmp_path), "--batch", "1", "3", "--prompt-len", "20", "--num-steps", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert [result["batch"] for result in json.loads(lines[-1])] == [1, 3]
    assert len(lines) == 5


def test_ranks_compute_the_same_steps_and_one_prints(tmp_path, capfd):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    main([str(tmp_path), "--ranks", "2", "--batch", "2", "--prompt-len", "20", "--num-steps", "3"])
    lines = capfd.readouterr().out.splitlines()
    assert [result["batch"] for result in json.loads(lines[-1])] == [2]
    assert len(lines) == 4


def test_loads_what_it_is_told_to(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    plain = load(tmp_path, 2, 128, False)
    loaded = load(tmp_path, 2, 128, False, quantization="fp8", kv_cache_dtype="fp8")
    assert (plain.quantization, loaded.quantization) == (None, "fp8")
    assert loaded.block_bytes < plain.block_bytes


def test_sequences_end_with_their_measurement(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    runner = load(tmp_path, 4, 128, False).runner
    alive, launch = set(), runner.launch

    def noting(plan):
        alive.difference_update(plan.released)
        alive.update(item.row for item in plan.scheduled)
        return launch(plan)

    monkeypatch.setattr(runner, "launch", noting)
    result = measure(runner, 4, 20, 3, temperature=0.8)
    assert result.step_ms >= result.launch_ms > 0
    assert not alive


def test_a_prompt_beside_each_step(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    runner = load(tmp_path, 5, 128, False).runner
    sizes, launch = [], runner.launch

    def noting(plan):
        sizes.append([len(item.token_ids) for item in plan.scheduled])
        return launch(plan)

    monkeypatch.setattr(runner, "launch", noting)
    measure(runner, 2, 20, 3, temperature=0.0, beside=21)
    assert sizes == [[20, 20], *[[1, 1, 21]] * 3, []]
