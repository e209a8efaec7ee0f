"""Through the front door: a server of its own, transformers, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.parity.command import main


@pytest.mark.usefixtures("forked_servers")
def test_the_quickstart_model_answers_as_transformers_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "parity.md"
    prompts.write_text("A headrace is\n\nTo start Headrace, run\n", encoding="utf-8")
    options = ["--prompts", str(prompts), "--max-tokens", "6", "--beam-width", "2", "--out", str(out)]
    assert main([*options, "--dtype", "float32", "--device", "cpu", "--server-args", "--kv-cache-memory", "16MiB"]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.count("2 of 2 | 0 of 0") == 2
    assert "all beams equal: 2 of 2" in text
    assert text.strip() in capsys.readouterr().out


def test_a_model_that_is_none_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
