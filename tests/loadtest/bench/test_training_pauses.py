from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.training_pauses import main
from loadtest.compare_peft import TINY_SHAPE


def test_pauses_and_the_way_to_a_callable_model_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE), encoding="utf-8")
    main([str(tmp_path), "--tokens", "16"])
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert 0 < figures["layer step, median"] <= figures["layer step, longest"]
    assert figures["state to host, median"] > 0
    parts = figures["callable: adapter written"] + figures["callable: adapter loaded"]
    assert 0 < parts < figures["callable, all"]
    assert all(name in err for name in figures)
