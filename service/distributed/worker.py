"""The process of every rank but rank 0: `python -m service.distributed.worker`, which rank 0 starts.

It has no HTTP and decides nothing. Its input comes from rank 0: the task over the lifeline, what the ranks agree on
while they load (`TensorParallel.of_first`, `least`), and then plans through the control ring.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from service.distributed.adapter_lines import AdapterTaker
from service.distributed.control_ring import RingReader
from service.distributed.plan_follower import PlanFollower
from service.distributed.rank_life import LifeSigns, leave_signals_to_parent
from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.rank_task import Inherited, RankFault, RankModel, RankReady, RankTask
from service.errors import ConfigError
from service.process.interpreter import settled
from service.process.log_format import make_formatter
from service.process.log_writer import LogWriter
from service.process.with_parent import end_with_parent

logger = logging.getLogger("headrace")

SPINS_S = 0.02
"""Longer than the gap between messages under load. On a CPU it does not spin, since the cores compute."""

Load = Callable[[Inherited, RankTask], RankModel]


def main(lifeline: Connection, prepare: Callable[[], Load]) -> int:
    """Returns an exit status if the rank cannot start or continue; otherwise the process ends with its parent.

    prepare: imports the code that loads the model, while rank 0 still works out the task.
    """
    inherited: Inherited = lifeline.recv()
    end_with_parent(inherited.parent)
    leave_signals_to_parent()
    load = prepare()
    try:
        task: RankTask = lifeline.recv()
    except EOFError:  # rank 0 has ended
        return 0
    with _log_of(task, inherited.rank) as log:
        return _serve(lifeline, inherited, task, load, log)


def _serve(lifeline: Connection, inherited: Inherited, task: RankTask, load: Load, log: LogWriter) -> int:
    rank = inherited.rank
    statuses = RankStatuses(inherited.statuses, inherited.num_ranks)
    LifeSigns(rank, lifeline, statuses, log.finish).start()
    try:
        loaded = load(inherited, task)
        statuses.set(rank, Fact.KV_BYTES, loaded.kv_bytes)

        def tell_memory() -> None:
            statuses.set(rank, Fact.MEMORY_BYTES, loaded.memory_bytes())

        tell_memory()
        reader = RingReader(inherited.ring, inherited.reader, SPINS_S if loaded.is_gpu else 0.0)
        take_adapters = _take_adapters(inherited, loaded, statuses)
        told = tell_memory, take_adapters, loaded.note_drawn, loaded.capture
        follower = PlanFollower(rank, reader, loaded.executor, statuses, *told)
        lifeline.send(RankReady())
        with settled(is_gpu=loaded.is_gpu):
            follower.follow()
    except ConfigError as fault:
        lifeline.send(RankFault(str(fault)))
    except Exception as fault:
        logger.critical("this rank failed and ends", exc_info=True)
        lifeline.send(RankFault(f"{type(fault).__name__}: {fault}"))
    return 1


def _take_adapters(inherited: Inherited, loaded: RankModel, statuses: RankStatuses) -> Callable[[Sequence[int]], None]:
    """Start taking adapters. Returns the function that drops the ids of adapters no longer in use."""
    if loaded.adapters is None:
        return lambda adapter_ids: None
    taker = AdapterTaker(inherited.rank, socket.socket(fileno=inherited.adapters), loaded.adapters, statuses)
    taker.start()
    return taker.drop


def _log_of(task: RankTask, rank: int) -> LogWriter:
    """Log to standard error from a thread, so that no one waits for its reader. Each line names the rank."""

    def name_rank(record: logging.LogRecord) -> bool:
        record.name = f"rank {rank}, {record.name}"
        return True

    log = LogWriter()
    log.setFormatter(make_formatter(task.log_format, is_terminal=sys.stderr.isatty()))
    log.addFilter(name_rank)
    logging.basicConfig(level=task.log_level.upper(), handlers=[log])
    return log


def _import_torch() -> Load:
    from service.distributed.rank_model import load_rank

    return load_rank


if __name__ == "__main__":
    sys.exit(main(Connection(int(sys.argv[1])), _import_torch))
