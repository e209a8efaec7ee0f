from __future__ import annotations

import threading

import pytest

from service.runner.choices import rank_compiling
from service.runner.choices.rank_compiling import compile_for_ranks


class Rank:
    """One of two, as threads: `least` returns once both have asked."""

    size = 2

    def __init__(self, rank, together):
        self.rank = rank
        self._together = together

    def least(self, number):
        self._together.wait(timeout=10)
        return number


@pytest.mark.parametrize("late", [0, 1])
def test_the_others_compile_once_the_first_has(late, monkeypatch):
    said, heard = [], threading.Event()

    def note(launch):
        launch()
        return ["noted"]

    def compiled(noted):
        said.append((threading.current_thread().name, noted))

    monkeypatch.setattr(rank_compiling, "note_launches", note)
    monkeypatch.setattr(rank_compiling, "compile_noted", compiled)
    together = threading.Barrier(2)

    def launch(rank):
        if rank == late:
            heard.wait(timeout=0.1)  # the other one waits meanwhile

    threads = [
        threading.Thread(
            target=lambda rank=rank: compile_for_ranks(lambda: launch(rank), Rank(rank, together)), name=f"rank {rank}"
        )
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert said == [("rank 0", ["noted"]), ("rank 1", ["noted"])]
