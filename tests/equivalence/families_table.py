"""`python -m tests.equivalence.families_table`: tries every family and writes the table in docs/models.md (a minute).

With family names as arguments, tries only these and writes nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.equivalence.family_list import FAMILIES
from tests.equivalence.family_run import MAX_TOKENS, FamilyRun, run_family

TABLE = Path(__file__).parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- families: made by tests/equivalence/families_table.py -->", "<!-- end of families -->"


def main(names: Sequence[str]) -> None:
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    wanted = [family for family in FAMILIES if not names or family.name in names]
    runs = []
    for family in wanted:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_family(family, Path(folder)))
        print(_row(runs[-1]), flush=True)
    if not names:
        TABLE.write_text(_with_table(TABLE.read_text(), runs))


def read_table(text: str) -> dict[str, list[str]]:
    """Family name -> cells of its row."""
    lines = text.partition(_BEGIN)[2].partition(_END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows[1:]}


def _with_table(text: str, runs: Sequence[FamilyRun]) -> str:
    before, _, rest = text.partition(_BEGIN)
    num_equal = sum(run.is_equal for run in runs)
    head = (
        f"Of {len(runs)} families, {num_equal} are served and give the text of `generate`.\n\n"
        f"| family | architecture | served by | {MAX_TOKENS} greedy tokens in fp32 |\n|---|---|---|---|\n"
    )
    return f"{before}{_BEGIN}\n{head}{''.join(_row(run) + chr(10) for run in runs)}{_END}{rest.partition(_END)[2]}"


def _row(run: FamilyRun) -> str:
    family = run.family
    if run.served_by is None:
        _, _, why = run.refusal.rpartition(": ")
        return f"| {family.name} | {family.model} | - | rejected: {why} |"
    return f"| {family.name} | {family.model} | {run.served_by} | {'equal' if run.is_equal else 'DIFFERENT'} |"


if __name__ == "__main__":
    main(sys.argv[1:])
