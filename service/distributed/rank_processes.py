"""The processes of a host's ranks, all but the first of all, as rank 0 starts, tells and ends them; on another host
than rank 0's, who stands there for it.

None outlives who started it, however that ends. Each has asked the kernel to be killed with its parent, and sees its
lifeline, a socket that only the parent holds, come to its end. To end them in order is to close it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from service.distributed.adapter_lines import AdapterLines
from service.distributed.control_ring import RingPlace, RingWriter
from service.distributed.rank_status import RankStatuses
from service.distributed.rank_task import Inherited, RankFault, RankReady, RankTask

WORKER = ("-m", "service.distributed.worker")
ENDS_WITHIN_S = 3.0
"""Then it is killed."""

_LOOK_EVERY_S = 0.01


class RankProcesses:
    """num_ranks: of all hosts, rank 0 among them. local: this host's, in order; all if left out. worker: the
    interpreter's arguments for a rank's process; the descriptor of its lifeline comes behind them. environment: what it
    has besides this process's.

    To be started on the main thread: the kernel kills a child with the thread that made it.
    """

    def __init__(
        self,
        num_ranks: int,
        worker: Sequence[str] = WORKER,
        environment: Mapping[str, str] | None = None,
        local: Sequence[int] | None = None,
    ) -> None:
        self.num_ranks = num_ranks
        self.local = tuple(range(num_ranks) if local is None else local)
        self.ranks = tuple(rank for rank in self.local if rank)
        place, memory = RingPlace.make(len(self.ranks)), RankStatuses.make_memory(num_ranks)
        self._meeting_point = os.memfd_create("headrace-meeting-point")
        self.statuses = RankStatuses(memory, num_ranks)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lifelines: list[Connection] = []
        self._adapter_lines: list[socket.socket] = []
        for rank in self.ranks:
            self._start(rank, place, memory, worker, environment)
        self.writer = RingWriter(place, self.is_alive, ranks=self.ranks)
        self.adapter_lines = AdapterLines(self._adapter_lines, self.ranks)
        self._place = place
        os.close(memory)

    def _start(
        self,
        rank: int,
        place: RingPlace,
        memory: int,
        worker: Sequence[str],
        environment: Mapping[str, str] | None,
    ) -> None:
        ours, theirs = socket.socketpair()
        our_adapters, their_adapters = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        adapters = their_adapters.fileno()
        with theirs, their_adapters:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, *worker, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(), adapters, memory, self._meeting_point, *place.descriptors),
                    stdin=subprocess.DEVNULL,
                    env=None if environment is None else {**os.environ, **environment},
                )
            )
        lifeline = Connection(ours.detach())
        lifeline.send(
            Inherited(
                rank,
                self.num_ranks,
                self.local.index(rank),
                len(self.local),
                1 + self.ranks.index(rank),
                os.getpid(),
                place,
                memory,
                self._meeting_point,
                adapters,
            )
        )
        self._lifelines.append(lifeline)
        self._adapter_lines.append(our_adapters)

    @property
    def meeting_point(self) -> str:
        """The path, in this process, of a file in memory that all ranks share."""
        return f"/proc/self/fd/{self._meeting_point}"

    def pid(self, rank: int) -> int:
        return self._processes[self.ranks.index(rank)].pid

    def exit_status(self, rank: int) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._processes[self.ranks.index(rank)].poll()

    def is_alive(self, rank: int) -> bool:
        return self.exit_status(rank) is None

    def tell(self, task: RankTask) -> None:
        """Raises OSError if one is gone."""
        for lifeline in self._lifelines:
            lifeline.send(task)

    def heard(self, rank: int, within_s: float = 0.0) -> RankReady | RankFault | None:
        """What the rank has said next, each word once; None if it says nothing for so long, or is gone."""
        lifeline = self._lifelines[self.ranks.index(rank)]
        with contextlib.suppress(OSError, EOFError):
            if lifeline.poll(within_s):
                word: RankReady | RankFault = lifeline.recv()
                return word
        return None

    def kill(self) -> None:
        """All of them, now."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)

    def close(self, within_s: float = ENDS_WITHIN_S) -> None:
        """Returns once all have ended: in order, or killed after that time. May be called again."""
        for lifeline in self._lifelines:
            lifeline.close()
        for line in self._adapter_lines:
            line.close()
        deadline_s = time.monotonic() + within_s
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
        self.kill()
        for process in self._processes:
            process.wait()
