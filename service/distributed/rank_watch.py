"""Watches a host's ranks other than rank 0: if one ends, hangs or deviates, all ranks are lost."""

from __future__ import annotations

import signal
import threading

from service.distributed.rank_loss import RankLoss
from service.distributed.rank_processes import RankProcesses
from service.distributed.rank_status import Fact
from service.distributed.rank_task import RankFault, RankReady

LOOK_EVERY_S = 0.1
HANGS_AFTER_LOOKS = 50
"""For a rank without heartbeat, or one that has not finished an iteration that rank 0 has finished: 5 s. Counted in
looks, so that time in which all processes were stopped together does not count."""
DIFFERS_AFTER_LOOKS = 10
"""For an iteration that failed on one rank: by then it has failed on rank 0, too, or it will not."""


class RankWatch:
    """A thread, from `start` to `stop`. Checks for hangs begin for a rank when it is ready."""

    def __init__(self, processes: RankProcesses, loss: RankLoss) -> None:
        self._processes = processes
        self._loss = loss
        self._others = [_Watched(rank) for rank in processes.ranks]
        self._ready = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Any thread but its own."""
        self._stopping.set()
        self._thread.join()

    def wait_until_ready(self) -> None:
        """Wait until all these ranks are ready. Raises ServerError if one is lost."""
        with self._ready:
            self._ready.wait_for(lambda: self._loss.reason is not None or all(each.is_ready for each in self._others))
        self._loss.check()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S) and self._loss.reason is None:
            for watched in self._others:
                fault = self._fault(watched)
                if fault is not None:
                    self._loss.declare(fault)
                    break
            with self._ready:
                self._ready.notify_all()

    def _fault(self, watched: _Watched) -> str | None:
        rank, processes = watched.rank, self._processes
        match processes.heard(rank):
            case RankFault(message):
                return f"rank {rank}: {message}"
            case RankReady():
                watched.is_ready = True
        status = processes.exit_status(rank)
        if status is not None:
            return f"rank {rank} has ended{_told(status)}"
        return self._ailment(watched) if watched.is_ready else None

    def _ailment(self, watched: _Watched) -> str | None:
        get, rank = self._processes.statuses.get, watched.rank
        heartbeat, done, failed = (get(rank, fact) for fact in (Fact.HEARTBEAT, Fact.PLANS_DONE, Fact.LAST_FAILED))
        if watched.silent.goes_on(heartbeat == watched.heartbeat) >= HANGS_AFTER_LOOKS:
            return f"rank {rank} has sent no heartbeat for {HANGS_AFTER_LOOKS * LOOK_EVERY_S:.0f} s"
        watched.heartbeat = heartbeat
        if watched.behind.goes_on(done < get(0, Fact.PLANS_DONE) and done == watched.done) >= HANGS_AFTER_LOOKS:
            return f"rank {rank} has not finished an iteration that rank 0 finished"
        watched.done = done
        if watched.differs.goes_on(failed > get(0, Fact.LAST_FAILED)) >= DIFFERS_AFTER_LOOKS:
            return f"an iteration failed on rank {rank}, but not on rank 0"
        return None


class _Looks:
    """Counts in how many consecutive looks a condition held."""

    def __init__(self) -> None:
        self._num = 0

    def goes_on(self, is_so: bool) -> int:
        self._num = self._num + 1 if is_so else 0
        return self._num


class _Watched:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.is_ready = False
        self.heartbeat = -1
        self.done = 0
        self.silent, self.behind, self.differs = _Looks(), _Looks(), _Looks()


def _told(status: int) -> str:
    if status >= 0:
        return f" with status {status}"
    try:
        return f", killed by {signal.Signals(-status).name}"
    except ValueError:
        return f", killed by signal {-status}"
