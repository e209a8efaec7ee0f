"""The guarantees of docs/production.md: eight, each with tests that are there and that run with all others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
TABLE = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
PROOFS = re.findall(r"^\| (\d) \| (.+) \|$", TABLE, re.MULTILINE)


def test_there_are_eight_and_each_has_a_row_of_tests():
    section = PAGE.partition("## Guarantees")[2].partition("\n## ")[0]
    promised = re.findall(r"^(\d)\. ", section, re.MULTILINE)
    assert promised == [number for number, _ in PROOFS] == list("12345678")


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof[0])
def test_each_names_tests_that_are_there_and_run_everywhere(proof: tuple[str, str]):
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", proof[1])
    assert named
    assert len(named) == proof[1].count("`") // 2, "nothing but tests"
    for file, test in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text, f"{file} has no {test}"
        assert not re.search(r"mark\.(load|gpu|clients)", text), f"{file} is not run by `make test`"
