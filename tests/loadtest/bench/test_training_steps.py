from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.bench.training_steps import idle_ms, main
from loadtest.compare_peft import TINY_SHAPE


def test_every_part_of_a_micro_batch_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE), encoding="utf-8")
    main([str(tmp_path), "--case", "1", "--tokens", "16", "--kernels", "5"])
    out, err = capsys.readouterr()
    (result,) = json.loads(out)
    assert result["case"] == "8 x 16, rank 16, all linears"
    assert [part["name"] for part in result["parts"]] == ["forward", "loss", "backward", "optimizer"]
    for part in result["parts"]:
        assert 0 < part["launching_ms"] <= part["wall_ms"]
        assert 0 < len(part["kernels"]) <= 5 <= part["num_kernels"]
        assert sum(kernel[2] for kernel in part["kernels"]) <= part["kernels_ms"] + 1e-9
        assert part["idle_ms"] >= 0
        assert part["name"] in err
    assert any("mm" in kernel[0] for kernel in result["parts"][0]["kernels"])


def test_idle_is_what_no_kernel_fills() -> None:
    spans = [(0, 1000), (500, 2000), (5000, 6000), (5200, 5300)]
    events = [SimpleNamespace(time_range=SimpleNamespace(start=start, end=end)) for start, end in spans]
    assert idle_ms(events) == 3.0
    assert idle_ms([]) == 0.0
