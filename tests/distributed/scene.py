"""Ranks as threads of one process: a control ring, and on each of them an executor that the test chooses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.core.iteration import IterationPlan, IterationResult
from service.distributed.control_ring import RingPlace, RingReader, RingWriter
from service.distributed.drawn_messages import NoteDrawn
from service.distributed.plan_follower import PlanFollower
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.told_captures import Capture, ToldCaptures
from service.distributed.told_executor import ToldExecutor
from service.engine.ports import Executor, PendingIteration

PATIENCE_S = 20.0
"""How long a test waits for a rank."""


@dataclass
class Done:
    """An iteration that is computed. fault: or that failed."""

    result: IterationResult = field(default_factory=lambda: IterationResult(()))
    fault: Exception | None = None
    done: threading.Event | None = None

    def is_done(self) -> bool:
        return self.done is None or self.done.is_set()

    def wait(self) -> IterationResult:
        if self.done is not None:
            assert self.done.wait(30)
        if self.fault is not None:
            raise self.fault
        return self.result


class Scripted:
    """launch(plan) is `behave(number, plan)`, the first plan is 1."""

    def __init__(self, behave: Callable[[int, IterationPlan], PendingIteration] = lambda number, plan: Done()) -> None:
        self._behave = behave
        self.plans: list[IterationPlan] = []

    def launch(self, plan: IterationPlan) -> PendingIteration:
        self.plans.append(plan)
        return self._behave(len(self.plans), plan)


class Scene:
    """executors: of every rank. num_peers: as of ToldExecutor. note_drawn: of each other rank. capture: of all
    others. A context manager; follows from its beginning to its end."""

    def __init__(
        self,
        *executors: Executor,
        take_dropped: Callable[[], Sequence[int]] = tuple,
        drop_adapters: Callable[[Sequence[int]], None] = lambda adapter_ids: None,
        num_peers: int | None = None,
        note_drawn: Sequence[NoteDrawn] = (),
        capture: Callable[[Capture], None] = lambda capture: None,
    ) -> None:
        self._place = RingPlace.make(len(executors) - 1)
        memory = RankStatuses.make_memory(len(executors))
        self.statuses = RankStatuses(memory, len(executors))
        os.close(memory)
        self.losses: list[str] = []
        self.loss = RankLoss(self.losses.append)
        writer = RingWriter(self._place)
        self.executor = ToldExecutor(executors[0], writer, self.statuses, self.loss, take_dropped, num_peers)
        self.captures = ToldCaptures(writer, self.loss)
        self._capture = capture
        self._note_drawn = note_drawn
        self._drop_adapters = drop_adapters
        self._stopping = False
        self._faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._follow, args=(rank, executor))
            for rank, executor in enumerate(executors[1:], 1)
        ]

    def _follow(self, rank: int, executor: Executor) -> None:
        reader = RingReader(self._place, rank)
        note_drawn = self._note_drawn[rank - 1] if self._note_drawn else None
        follower = PlanFollower(
            rank,
            reader,
            executor,
            self.statuses,
            drop_adapters=self._drop_adapters,
            note_drawn=note_drawn,
            capture=self._capture,
        )
        try:
            while not self._stopping:
                if reader.has_message:
                    follower.follow_one()
                else:
                    follower.note_done()
                    time.sleep(0.0005)
        except BaseException as fault:
            self._faults.append(fault)
            self.loss.declare(f"rank {rank} has ended: {fault}")  # as its process's end would be noticed

    def wait_for(self, rank: int, fact: Fact, at_least: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.statuses.get(rank, fact) < at_least:
            assert time.monotonic() < deadline_s, (rank, fact, self.statuses.get(rank, fact), self._faults)
            time.sleep(0.001)

    def __enter__(self) -> Scene:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(30)
        self._place.close()
        assert not self._faults, self._faults
