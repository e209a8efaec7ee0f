"""The tables of tests/README.md: no row is empty, and the tests that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.api.calls.unsupported import _DEFAULTS
from service.protocol.chat import ChatRequest
from service.protocol.completions import CompletionRequest

TESTS = Path(__file__).parents[1]
README = (TESTS / "README.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in README.partition("## The eight guarantees")[2].splitlines()
    if line.startswith("| ") and not line.startswith(("| parameter or", "| guarantee", "| promise"))
]
ELSEWHERE = {"model", "documents", "stream", "audio", "prediction", "verbosity", "web_search_options", "moderation"}
ELSEWHERE |= {"spaces_between_special_tokens", "add_special_tokens"}
ELSEWHERE |= {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
"""Not in api.md by this name, or spoken of in every row."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_row_names_tests_that_are_there(row: str) -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", row.split("|")[2])
    assert named
    for file, test in named:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{file} has no {test}"


def test_every_parameter_has_a_row() -> None:
    first_column = " ".join(row.split("|")[1] for row in ROWS)
    fields = {*CompletionRequest.model_fields, *ChatRequest.model_fields, *_DEFAULTS}
    assert sorted(field for field in fields - ELSEWHERE if field not in first_column) == []
