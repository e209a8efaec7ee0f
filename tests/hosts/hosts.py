"""Two hosts of a model in two stages, as processes of this one; what they load is nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace

from service.config import NodeConfig, ParallelConfig
from service.distributed.control_ring import MessageWriter, RingPlace, RingWriter
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import RankStatuses
from service.hosts.head import HeadHosts
from tests.distributed.test_rank_processes import TASK as ONE_HOSTS_TASK

SECRET = "a secret of sixteen"
PARALLEL = ParallelConfig(num_stages=2, num_nodes=2)
TASK = replace(ONE_HOSTS_TASK, parallel=PARALLEL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def node(rank: int, port: int, secret: str = SECRET) -> NodeConfig:
    return NodeConfig(2, rank, "127.0.0.1", port, secret)


class Head:
    """The head's side, and what became of it. A context manager: other hosts that were started are gone at its end."""

    def __init__(self) -> None:
        self.port = free_port()
        self.losses: list[str] = []
        self.leaving: list[str] = []
        self.loss = RankLoss(self._lose)
        self.statuses = RankStatuses(RankStatuses.make_memory(2), 2)
        self.hosts = HeadHosts(node(0, self.port), PARALLEL)
        self._others: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Head:
        self.hosts.listen(self.statuses, self.loss, self.leaving.append)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.hosts.close()
        for other in self._others:
            if other.poll() is None:
                other.kill()
            other.communicate()

    def start_other(self, behaviour: str = "works", *fact: str, secret: str = SECRET) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.hosts.fake_host", str(self.port), secret, behaviour, *fact]
        self._others.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return self._others[-1]

    def meet(self) -> MessageWriter:
        """Until all ranks are ready; returns what writes to them."""
        self.hosts.meet(TASK, free_port)
        self.hosts.wait_until_ready()
        writer = self.hosts.writer(RingWriter(RingPlace.make(0)))
        assert not self.losses
        return writer

    def _lose(self, reason: str) -> None:
        self.losses.append(reason)
        self.hosts.lose(reason)
