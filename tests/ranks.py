"""Ranks for tests: processes that live as long as the tests which share them, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

_PATIENCE_S = 120.0
_IMPORTED = ["torch", "service.layers.group_parallel", "tests.equivalence.rank_work", "tests.equivalence.stage_work"]
"""By the process that ranks are forked from: once, and not by each. Beside a GPU all are processes of their own."""


class Ranks:
    """`run` has every rank call a function of a module, which gets its TensorParallel first."""

    def __init__(self, size: int, patience_s: float = _PATIENCE_S) -> None:
        self.size = size
        self._patience_s = patience_s
        context = multiprocessing.get_context("spawn" if os.path.exists("/dev/nvidiactl") else "forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self._folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(self._folder.name) / "meeting-point")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, meeting_point, theirs, patience_s), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What each rank's call returned, in their order. Raises AssertionError with a rank's traceback."""
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((function, args)))  # not by torch's ways, which share memory
        answers = []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(self._patience_s):
                self._kill()  # so that who asks next waits no more
                raise AssertionError(f"rank {rank} does not answer")
            answers.append(pickle.loads(connection.recv_bytes()))
        faults = [fault for _, fault in answers if fault]
        assert not faults, faults[0]
        return [result for result, _ in answers]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)
            process.kill()
            process.join()
        self._folder.cleanup()


class Where(NamedTuple):
    """device: "cuda": each of the ranks has a GPU."""

    ranks: Ranks
    device: str


def _serve(rank: int, size: int, meeting_point: str, connection: Connection, patience_s: float) -> None:
    import torch
    import torch.distributed as dist

    from service.layers.group_parallel import GroupParallel

    torch.set_num_threads(1)
    store = dist.FileStore(meeting_point, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=patience_s))
    group = dist.group.WORLD
    assert group is not None
    parallel = GroupParallel(group)
    while True:
        try:
            function, args = pickle.loads(connection.recv_bytes())
        except EOFError:  # the tests are over
            break
        try:
            answer = function(parallel, *args), None
        except BaseException:
            answer = None, traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))
    dist.destroy_process_group()
