from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from loadtest.bench.ranks import run_ranks


def meet(rank: int, meeting_point: str, num_ranks: int, statuses: tuple[int, ...]) -> None:
    """Wait until all ranks are there."""
    Path(f"{meeting_point}-{rank}").touch()
    while not all(Path(f"{meeting_point}-{each}").exists() for each in range(num_ranks)):
        time.sleep(0.01)
    sys.exit(statuses[rank])


@pytest.mark.parametrize(("statuses", "status"), [((0, 0), 0), ((0, 3), 3)])
def test_ranks_meet_at_one_place_and_a_failed_one_gives_the_status(statuses: tuple[int, ...], status: int):
    assert run_ranks(2, meet, 2, statuses) == status
