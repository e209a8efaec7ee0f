"""The log of measurements: loadtest/LOG.md lists its topics, and each topic's file is newest first."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

LOADTEST = Path(__file__).parents[2] / "loadtest"
TOPICS = sorted((LOADTEST / "log").iterdir())


def test_the_door_lists_every_topic():
    listed = re.findall(r"\]\((log/[\w.]+)\)", (LOADTEST / "LOG.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [f"log/{file.name}" for file in TOPICS]


def test_the_door_holds_no_entries():
    assert not re.search(r"^## ", (LOADTEST / "LOG.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("file", TOPICS, ids=lambda file: file.stem)
def test_entries_are_dated_and_newest_first(file: Path):
    headings = re.findall(r"^## (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    days = [date.fromisoformat(heading.partition(": ")[0]) for heading in headings]
    assert days
    assert days == sorted(days, reverse=True)
