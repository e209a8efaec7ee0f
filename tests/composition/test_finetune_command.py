from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from service.composition import finetune_command as module
from service.composition.finetune_command import CHECKPOINT, Progress, main
from service.core.training import StepReport
from service.lora.adapter_folder import WEIGHTS_FILE
from service.settings.quickstart import QUICKSTART_MODEL
from tests.models.bitsandbytes_checkpoints import BITSANDBYTES
from tests.models.quantized_checkpoints import quantized

LINES = [{"prompt": "the tower is", "completion": f" blue, {number} times"} for number in range(4)]
SMALL = ["--device", "cpu", "--dtype", "float32", "--rank", "2", "--target-modules", "q_proj", "--batch-size", "1"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_an_adapter_is_made_and_one_that_was_interrupted_goes_on_to_the_same_bits(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(data), "--epochs", "3", *SMALL]
    assert main([*asked, "--out", str(tmp_path / "whole")]) == 0
    told = capsys.readouterr().err
    assert "step 12/12" in told
    assert "4 examples, " in told and "rank 2, " in told and "batch_size 1, " in told

    def interrupt(self: Progress, report: StepReport, num_steps: int) -> None:
        if report.step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "tell", interrupt)
        assert main([*asked, "--out", str(tmp_path / "cut")]) == 130
    assert "after step 5" in capsys.readouterr().err
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    assert main([*asked, "--out", str(tmp_path / "cut")]) == 0
    weights = [(tmp_path / name / WEIGHTS_FILE).read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["adapter_config.json", WEIGHTS_FILE]


def test_beside_weights_of_bitsandbytes_an_adapter_is_what_it_is_beside_their_dequantized_ones(
    data: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(QUICKSTART_MODEL, tmp_path / "base")
    folder = quantized(base, "int8", BITSANDBYTES)
    made = []
    for model in (folder, folder / "plain"):
        for file in base.glob("*token*"):
            shutil.copy(file, model)
        out = tmp_path / f"adapter-{model.name}"
        assert main([str(data), "--epochs", "1", *SMALL, "--model", str(model), "--out", str(out)]) == 0
        made.append((out / WEIGHTS_FILE).read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--target-modules", "qkv"], "no linear layer 'qkv'"),
        (["--max-length", "100000"], "context length"),
        (["--model", "/nowhere"], "nowhere"),
        (["--validation", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_said(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert main([str(data), "--device", "cpu", "--out", str(tmp_path / "out"), *more]) == 1
    message = capsys.readouterr().err
    assert message.startswith("headrace finetune: ") and why in message


def test_a_line_that_cannot_be_used_is_named(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_text(data.read_text() + "{}\n")
    assert main([str(data), "--device", "cpu", "--out", str(tmp_path / "out")]) == 1
    assert "line 5" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--epochs", "51"], ["--learning-rate", "0"], ["--rank", "x"], ["--alpha", "nan"]])
def test_numbers_out_of_range_are_refused_by_name(
    data: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(data), "--out", "unused", *more])
    assert more[0] in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(output: io.StringIO, num_steps: int) -> str:
    progress = Progress(output)
    progress.begin(0)
    for step in range(1, num_steps + 1):
        progress.tell(StepReport(step, 0.5, 0.5, 10, 0.1, 1.0), num_steps)
    return output.getvalue()


def test_progress_is_a_line_on_a_terminal_and_some_lines_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TELL_EVERY_S", 0.0)
    on_terminal = tell(_Terminal(), 40)
    assert on_terminal.count("\n") == 1 and on_terminal.count("\r") == 40
    assert on_terminal.endswith(" left  \n") and f"[{'#' * 30}]" in on_terminal
    in_file = tell(io.StringIO(), 1000)
    assert in_file.count("\n") == 10 and "\r" not in in_file
