"""Starts, instructs and ends the processes of a host's ranks (all but rank 0), from rank 0's process. On another host
the process that stands in for rank 0 does it.

No rank outlives its parent, however that ends: the kernel kills a rank with its parent, and each rank holds a lifeline,
a socket whose other end only the parent has. Closing it asks the rank to end.
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
"""Then the process is killed."""

_LOOK_EVERY_S = 0.01


class RankProcesses:
    """num_ranks: of all hosts, with rank 0. local: the ranks of this host, in order; None means all. worker: the
    interpreter's arguments for a rank's process; the lifeline's descriptor is appended. environment: variables added to
    this process's.

    To be created on the main thread: the kernel kills a child when the thread that created it ends.
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
        """The path, valid in this process, of a file in memory that all ranks share."""
        return f"/proc/self/fd/{self._meeting_point}"

    def pid(self, rank: int) -> int:
        return self._processes[self.ranks.index(rank)].pid

    def exit_status(self, rank: int) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._processes[self.ranks.index(rank)].poll()

    def is_alive(self, rank: int) -> bool:
        return self.exit_status(rank) is None

    def tell(self, task: RankTask) -> None:
        """Raises OSError if a rank is gone."""
        for lifeline in self._lifelines:
            lifeline.send(task)

    def heard(self, rank: int, within_s: float = 0.0) -> RankReady | RankFault | None:
        """The rank's next message; None if none comes within `within_s` or the rank is gone."""
        lifeline = self._lifelines[self.ranks.index(rank)]
        with contextlib.suppress(OSError, EOFError):
            if lifeline.poll(within_s):
                word: RankReady | RankFault = lifeline.recv()
                return word
        return None

    def kill(self) -> None:
        """Kill all of them at once."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)

    def close(self, within_s: float = ENDS_WITHIN_S) -> None:
        """Ask all ranks to end, and kill those that have not ended within `within_s`. Returns once all have ended; may
        be called again."""
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
