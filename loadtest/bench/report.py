"""Output of the benchmarks: a table for people, and a last line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is left-aligned, the others right-aligned."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        first, *others = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)


def print_json(result: Mapping[str, object]) -> None:
    """Print the result on one line, numbers rounded to five digits."""
    print(json.dumps(_rounded(result)), flush=True)


def percent(limit: float, measured: float) -> str:
    """The limit as a percentage of the measured time."""
    return f"{100 * limit / measured:.0f} %"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return value
