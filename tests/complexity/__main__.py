"""`python -m tests.complexity [part of a name]`: what each worst input costs at the largest size that is let through.

Growth, of four times the input; all its seconds; for how long no other thread came to run (a pool's work) or the event
loop was held (the loop's). Of a stream, whose work is spread over its tokens, one token's part. Not a test: seconds
depend on the machine.
"""

from __future__ import annotations

import sys

from tests.complexity.growth import WorstInput, held_s, least_growth
from tests.complexity.table import WORST_INPUTS

BUDGET_S = 0.05


def line(row: WorstInput) -> str:
    took_s, gap_s = held_s(row.make(row.most))
    held = {"loop": took_s, "pool": gap_s, "stream": took_s / row.most}[row.place]
    mark = "over" if held > BUDGET_S else ""
    figures = f"{least_growth(row):5.1f} {row.most:>9,} {1000 * took_s:10.1f} {1000 * held:10.3f}"
    return f"{row.name:62} {row.place:6} {figures} {mark}"


def main() -> None:
    print(f"{'worst input':62} {'where':6} {'x4':>5} {'n':>9} {'all, ms':>10} {'held, ms':>10}")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in WORST_INPUTS:
        if wanted in row.name:
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
