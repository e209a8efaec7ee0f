from pathlib import Path

import pytest

from loadtest.cli import main


@pytest.mark.parametrize(
    "options",
    [
        ["--burstiness", "0.5"],
        ["--arrival", "closed", "--request-rate", "3"],
        ["--arrival", "trace"],
        ["--trace-speed", "2"],
    ],
)
def test_options_that_would_not_be_heeded_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "--out", str(tmp_path / "t.jsonl"), *options]) == 2
    assert options[0] in capsys.readouterr().err or "--request-rate" in options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--num-prompts", "-3"),
        ("--max-concurrency", "0"),
        ("--processes", "half"),
        ("--warmup", "-1"),
        ("--timeout", "0"),
        ("--metric-percentiles", "50,a"),
        ("--metric-percentiles", "50,101"),
        ("--extra-body", "[1]"),
        ("--extra-body", "{"),
    ],
)
def test_a_wrong_value_is_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", option, value])
    assert option in capsys.readouterr().err
