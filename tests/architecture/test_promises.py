"""The promises of docs/production.md: eight, each with tests that are there and that run with all others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d)\. (.+?) \| (.+) \|$", PAGE, re.MULTILINE)


def test_there_are_eight():
    assert [number for number, _, _ in ROWS] == list("12345678")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_each_names_tests_that_are_there_and_run_everywhere(row: tuple[str, str, str]):
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])
    assert named
    assert len(named) == row[2].count("`") // 2, "nothing but tests"
    for file, test in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text, f"{file} has no {test}"
        assert not re.search(r"mark\.(load|gpu|clients)", text), f"{file} is not run by `make test`"
