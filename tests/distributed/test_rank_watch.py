from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.core.iteration import IterationPlan
from service.distributed import rank_watch
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_processes import RankProcesses
from service.distributed.rank_status import Fact
from service.distributed.rank_watch import RankWatch
from service.distributed.told_executor import ToldExecutor
from service.errors import ServerError
from tests.distributed.scene import Done, Scripted
from tests.distributed.test_rank_processes import comes_true, started

WITHIN_S = 10.0
EMPTY = IterationPlan(())


class Watched:
    """Two ranks, the other one a process of its own that behaves like this."""

    def __init__(self, behaviour: str) -> None:
        self.processes: RankProcesses = started(2, behaviour)
        self.losses: list[str] = []
        self.loss = RankLoss(self.losses.append)
        self.watch = RankWatch(self.processes, self.loss)
        self.executor = ToldExecutor(Scripted(), self.processes.writer, self.processes.statuses, self.loss)
        self.watch.start()


@contextmanager
def watched(behaviour: str) -> Iterator[Watched]:
    scene = Watched(behaviour)
    try:
        yield scene
    finally:
        scene.watch.stop()
        scene.processes.kill()
        scene.processes.close()


def test_a_rank_that_ends_while_it_loads_or_cannot_load_is_told_of():
    with watched("refuses") as scene, pytest.raises(ServerError, match="rank 1: num-things: 3 is too odd"):
        scene.watch.wait_until_ready()
    with watched("crashes") as scene:
        with pytest.raises(ServerError, match="rank 1 has ended with status 3"):
            scene.watch.wait_until_ready()
        assert len(scene.losses) == 1


def test_a_killed_rank_and_a_stopped_one_are_lost_in_time_and_nothing_is_launched_any_more():
    with watched("works") as scene:
        scene.watch.wait_until_ready()
        scene.executor.launch(EMPTY).wait()
        os.kill(scene.processes.pid(1), signal.SIGKILL)
        assert comes_true(lambda: bool(scene.losses), WITHIN_S)
        assert scene.losses == ["rank 1 has ended, killed by SIGKILL"]
        with pytest.raises(ServerError, match="SIGKILL"):
            scene.executor.launch(EMPTY)
    with watched("works") as scene:
        scene.watch.wait_until_ready()
        os.kill(scene.processes.pid(1), signal.SIGSTOP)
        assert comes_true(lambda: bool(scene.losses), WITHIN_S)
        assert scene.losses == ["rank 1 has sent no heartbeat for 5 s"]


def test_a_rank_that_is_stuck_in_an_iteration_is_lost_in_time():
    with watched("stuck") as scene:
        scene.watch.wait_until_ready()
        for _ in range(2):
            scene.executor.launch(EMPTY).wait()
        assert comes_true(lambda: bool(scene.losses), WITHIN_S)
        assert scene.losses == ["rank 1 has not finished an iteration that rank 0 finished"]


def test_a_rank_that_fails_while_rank_0_is_kept_waiting_is_lost():
    """Rank 0 hangs in an exchange with it, so its engine's thread can tell nobody."""
    with watched("fails") as scene:
        scene.watch.wait_until_ready()
        release = threading.Event()

        def keep_waiting(number: int, plan: IterationPlan) -> Done:
            release.wait(30)
            return Done()

        stuck = Scripted(keep_waiting)
        executor = ToldExecutor(stuck, scene.processes.writer, scene.processes.statuses, scene.loss)
        thread = threading.Thread(target=executor.launch, args=(EMPTY,))
        thread.start()
        try:
            assert comes_true(lambda: bool(scene.losses), WITHIN_S)
            assert scene.losses == ["an iteration failed on rank 1, but not on rank 0"]
        finally:
            release.set()
            thread.join()


def test_a_slow_rank_is_no_lost_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_watch, "HANGS_AFTER_LOOKS", 8)  # four of its iterations
    with watched("slow") as scene:
        scene.watch.wait_until_ready()
        for _ in range(12):
            scene.executor.launch(EMPTY).wait()
        assert comes_true(lambda: scene.processes.statuses.get(1, Fact.PLANS_DONE) == 12)
        time.sleep(0.3)
        assert scene.losses == []
