from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli import main
from service.doctor.command import CHECKS, examine
from service.doctor.finding import Finding, Verdict, ok
from service.settings.settings import Settings


def test_every_thing_has_a_verdict_and_a_fault_is_status_1(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    free = ["--port", "0", "--data-dir", str(tmp_path), "--max-storage-gib", "0.001"]
    assert main(["doctor", *free]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("faults: 0, ")
    assert all(line.split()[0] in {*Verdict, "->"} for line in lines[:-2])
    assert len(lines) > len(CHECKS)
    assert main(["doctor", "./nowhere", *free]) == 1
    assert "fault    model" in capsys.readouterr().out


def test_a_setting_that_is_wrong_is_a_fault_too(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--port", "x"]) == 1
    assert capsys.readouterr().out.startswith("fault    settings       port: ")


def test_a_check_that_fails_itself_does_not_end_the_others():
    def check_broken(settings: Settings) -> Iterator[Finding]:
        raise KeyError("lost")

    def check_next(settings: Settings) -> Iterator[Finding]:
        yield ok("next", "there")

    broken, after = examine(Settings(), [check_broken, check_next])
    assert (broken.subject, broken.verdict, after.verdict) == ("broken", Verdict.FAULT, Verdict.OK)
