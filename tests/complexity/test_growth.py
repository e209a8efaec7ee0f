"""Twice the input is at most about twice the work, for everything that reads what a client sends or steers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.complexity.growth import MOST_GROWTH, WorstInput, files_entered, least_growth
from tests.complexity.table import WITHOUT_WORST_INPUT, WORST_INPUTS

SERVICE = Path(__file__).parents[2] / "service"
READERS = ("api", "text", "structured", "protocol")


def modules() -> set[str]:
    files = [file for reader in READERS for file in (SERVICE / reader).rglob("*.py") if file.name != "__init__.py"]
    return {str(file.relative_to(SERVICE)) for file in files}


@pytest.mark.parametrize("row", WORST_INPUTS, ids=lambda row: row.name)
def test_the_work_grows_as_the_input(row: WorstInput) -> None:
    assert least_growth(row) < MOST_GROWTH


def test_a_quadratic_one_would_be_found() -> None:
    def quadratic(n: int) -> object:
        return lambda: sum(1 for _ in range(n) for _ in range(n))

    row = WorstInput("quadratic", (), quadratic, 300, 300, "loop")
    assert least_growth(row) > MOST_GROWTH


def test_every_module_is_in_the_table_or_says_why_not() -> None:
    in_table = {module for row in WORST_INPUTS for module in row.modules}
    assert sorted(modules() - in_table - set(WITHOUT_WORST_INPUT)) == []
    assert sorted(in_table & set(WITHOUT_WORST_INPUT)) == []
    assert sorted(module for module in in_table | set(WITHOUT_WORST_INPUT) if not (SERVICE / module).exists()) == []


@pytest.mark.parametrize("row", WORST_INPUTS, ids=lambda row: row.name)
def test_a_row_sees_the_modules_that_it_names(row: WorstInput) -> None:
    """Wire shapes have no functions of their own: their work is pydantic's."""
    named = {str(SERVICE / module) for module in row.modules if not module.startswith("protocol/")}
    assert sorted(named - files_entered(row.make(max(1, row.size // 8)))) == []


def test_names_tell_rows_apart() -> None:
    assert len({row.name for row in WORST_INPUTS}) == len(WORST_INPUTS)
