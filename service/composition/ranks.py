"""The ranks that compute together, from start to end, and the single rank that needs none of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from service.config import NodeConfig, ParallelConfig
from service.core.stats import RankFacts
from service.distributed.adapter_lines import AdapterSharing
from service.distributed.late_launch import LateLaunch
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_processes import WORKER, RankProcesses
from service.distributed.rank_status import Fact
from service.distributed.rank_task import RankTask
from service.distributed.rank_watch import LOOK_EVERY_S, RankWatch
from service.distributed.told_executor import ToldExecutor
from service.engine.ports import Executor, TrainingExecutor
from service.errors import ConfigError, ModelLoadError, ServerError
from service.hosts.head import HeadHosts
from service.hosts.host_line import LineLost
from service.hosts.one_host import OneHost, OtherHosts

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from service.distributed.rank_trainings import SharedTrainings
    from service.layers.pipeline_stage import RankPlace
    from service.lora.adapter_store import AdapterReader, AdapterStore
    from service.runner.load import LoadedModel
    from service.runner.replays import Replays

logger = logging.getLogger("headrace")

LOST_IS_KNOWN_WITHIN_S = 10 * LOOK_EVERY_S
"""If a rank has ended, rank 0's next exchange with it fails; the reason why it ended is known within this time."""


class Ranks(Protocol):
    """The caller of `start` calls `close` in the end, whatever happened between them."""

    def start(self, on_loss: Callable[[str], None], on_leave: Callable[[str], None] = lambda reason: None) -> None:
        """To be called on the process's main thread. on_loss(reason): called once, from any thread, when nothing can be
        computed any more. on_leave(reason): called from any thread when another host was asked to end, so that the
        service drains. ConfigError if this host cannot listen for the others."""
        ...

    def load(self, task: RankTask, load: Callable[[RankPlace], LoadedModel]) -> LoadedModel:
        """Has every rank load its part, this one by `load`; returns when all can compute. Any thread. Raises what
        `load` raises, and ModelLoadError with another rank's own message if that rank could not load."""
        ...

    def executor(self, local: Executor, *, is_gpu: bool) -> Executor:
        """The executor of plans on all ranks; local: that of this rank's part. After `load`."""
        ...

    def adapters(self, local: AdapterStore) -> AdapterReader:
        """Reads adapters for all ranks; local: this rank's. After `load`."""
        ...

    def trainings(self) -> SharedTrainings | None:
        """Passes trainings to the other ranks; None if there are none. After `load`."""
        ...

    def training_executor(self, local: TrainingExecutor, executor: Executor) -> TrainingExecutor:
        """The executor of trainings on all ranks; local: that of this rank's part. executor: what `executor` returned.
        After `load`."""
        ...

    def tell_captures(self, replays: Replays) -> None:
        """From now on all ranks capture the CUDA graphs that this one captures. After `load`."""
        ...

    def facts(self) -> Sequence[RankFacts]:
        """Of each rank, this one first; empty with a single rank. Any thread."""
        ...

    def close(self) -> None:
        """Returns when no other rank runs any more."""
        ...


class OneRank:
    """This process computes alone."""

    def start(self, on_loss: Callable[[str], None], on_leave: Callable[[str], None] = lambda reason: None) -> None:
        pass

    def load(self, task: RankTask, load: Callable[[RankPlace], LoadedModel]) -> LoadedModel:
        from service.layers.pipeline_stage import RankPlace  # brings torch, which is loaded by now

        return load(RankPlace())

    def executor(self, local: Executor, *, is_gpu: bool) -> Executor:
        return local

    def adapters(self, local: AdapterStore) -> AdapterReader:
        return local

    def trainings(self) -> None:
        """None: this rank trains alone."""

    def training_executor(self, local: TrainingExecutor, executor: Executor) -> TrainingExecutor:
        return local

    def tell_captures(self, replays: Replays) -> None:
        pass

    def facts(self) -> Sequence[RankFacts]:
        return ()

    def close(self) -> None:
        pass


ONE_RANK = OneRank()


class SeveralRanks:
    """This process is rank 0 of several. worker: see RankProcesses. hosts: the other hosts, which have some of the
    ranks."""

    def __init__(self, config: ParallelConfig, worker: Sequence[str] = WORKER, hosts: OtherHosts | None = None) -> None:
        self._hosts = OneHost() if hosts is None else hosts
        self._local = config.ranks_of(0)
        self._store: TCPStore | None = None
        self._config = config
        self._num_ranks = config.num_ranks
        self._worker = worker
        self._processes: RankProcesses | None = None
        self._watch: RankWatch | None = None
        self._is_listening = False
        self._loss: RankLoss | None = None
        self._sharing: AdapterSharing | None = None
        self._memory_bytes: Callable[[], int] = int  # nothing yet

    def start(self, on_loss: Callable[[str], None], on_leave: Callable[[str], None] = lambda reason: None) -> None:
        self._processes = RankProcesses(self._num_ranks, self._worker, local=self._local)
        pids = ", ".join(str(self._processes.pid(rank)) for rank in self._processes.ranks)
        logger.info("rank 0 of %d is this process; the others are %s", self._num_ranks, pids or "on other hosts")
        self._loss = RankLoss(lambda reason: self._lose(on_loss, reason))
        self._watch = RankWatch(self._processes, self._loss)
        self._watch.start()
        self._hosts.listen(self._processes.statuses, self._loss, on_leave)
        self._is_listening = True

    def load(self, task: RankTask, load: Callable[[RankPlace], LoadedModel]) -> LoadedModel:
        from service.distributed.process_groups import LOOPBACK, join_ranks, open_store  # torch is loaded by now
        from service.distributed.rank_device import rank_device, reserved_bytes

        assert self._processes is not None and self._watch is not None and self._loss is not None
        statuses = self._processes.statuses
        try:
            device = rank_device(task.source.device, 0, len(self._local))
            meeting = self._hosts.meet(task, self._open_store)
            self._processes.tell(replace(task, meeting=meeting))
            store = open_store(meeting, self._processes.meeting_point, self._num_ranks)
            interface = LOOPBACK if meeting is None else meeting.interface
            note_exchange = partial(statuses.note_exchange, 0)
            loaded = load(join_ranks(0, self._config, store, device, note_exchange, interface))
            statuses.set(0, Fact.KV_BYTES, loaded.memory.kv_cache_bytes)
            self._memory_bytes = partial(reserved_bytes, device)
            self._watch.wait_until_ready()
            self._hosts.wait_until_ready()
        except ConfigError as fault:
            self._hosts.lose(str(fault))
            raise
        except (OSError, RuntimeError, ServerError, LineLost) as fault:
            # perhaps an error of torch.distributed because another rank has ended
            deadline_s = time.monotonic() + LOST_IS_KNOWN_WITHIN_S
            while self._loss.reason is None and time.monotonic() < deadline_s:
                time.sleep(LOOK_EVERY_S)
            if self._loss.reason is None:
                self._hosts.lose(str(fault))
                raise
            raise ModelLoadError(self._loss.reason) from fault
        return loaded

    def executor(self, local: Executor, *, is_gpu: bool) -> Executor:
        assert self._processes is not None and self._loss is not None
        processes, config = self._processes, self._config
        if is_gpu:
            from service.distributed.settled_failures import SettledFailures  # brings torch, which is loaded by now

            local = SettledFailures(local)
        elif config.num_stages > 1:
            local = LateLaunch(local)
        take_dropped = processes.adapter_lines.take_dropped
        writer = self._hosts.writer(processes.writer)
        return ToldExecutor(local, writer, processes.statuses, self._loss, take_dropped, num_peers=config.tensor_size)

    def adapters(self, local: AdapterStore) -> AdapterReader:
        from service.distributed.shared_adapters import SharedAdapters  # brings torch, which is loaded by now

        return SharedAdapters(local, self._adapter_sharing())

    def trainings(self) -> SharedTrainings:
        from service.distributed.rank_trainings import SharedTrainings  # likewise

        return SharedTrainings(self._adapter_sharing())

    def training_executor(self, local: TrainingExecutor, executor: Executor) -> TrainingExecutor:
        from service.distributed.rank_trainings import StagedTrainings  # likewise

        return local if self._config.num_stages == 1 else StagedTrainings(local, executor)

    def tell_captures(self, replays: Replays) -> None:
        from service.distributed.told_captures import ToldCaptures  # likewise

        assert self._processes is not None and self._loss is not None
        if self._config.num_stages == 1:  # else all are captured before the first request
            replays.tell_captures(ToldCaptures(self._processes.writer, self._loss))

    def _adapter_sharing(self) -> AdapterSharing:
        """One for adapters and trainings, as the connection to another host carries one transfer at a time."""
        assert self._processes is not None
        if self._sharing is None:
            self._sharing = self._hosts.adapters(self._processes.adapter_lines)
        return self._sharing

    def facts(self) -> Sequence[RankFacts]:
        if self._processes is None:
            return ()
        get = self._processes.statuses.get
        return tuple(
            RankFacts(
                rank,
                memory_bytes=get(rank, Fact.MEMORY_BYTES) if rank else self._memory_bytes(),
                kv_bytes=get(rank, Fact.KV_BYTES),
                num_messages=get(rank, Fact.MESSAGES),
                latency_s=get(rank, Fact.LATENCY_NS) / 1e9,
                max_latency_s=get(rank, Fact.MAX_LATENCY_NS) / 1e9,
                busy_s=get(rank, Fact.BUSY_NS) / 1e9,
                waiting_s=get(rank, Fact.WAITING_NS) / 1e9,
                num_adapters=get(rank, Fact.ADAPTERS),
                num_exchanges=get(rank, Fact.EXCHANGES),
                exchange_s=get(rank, Fact.EXCHANGE_NS) / 1e9,
                stage=self._config.stage_of(rank) if self._config.num_stages > 1 else None,
                compute_s=get(rank, Fact.COMPUTE_NS) / 1e9,
            )
            for rank in range(self._num_ranks)
        )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._is_listening:
            self._hosts.close()
        if self._processes is not None:
            self._processes.close()

    def _lose(self, on_loss: Callable[[str], None], reason: str) -> None:
        """Ends all other ranks: they cannot go on without the lost one, and must not keep this process waiting in an
        exchange."""
        assert self._processes is not None
        on_loss(reason)
        self._processes.kill()
        self._hosts.lose(reason)

    def _open_store(self) -> int:
        from service.distributed.process_groups import serve_store  # torch is loaded by now

        self._store = serve_store()
        return self._store.port


def make_ranks(config: ParallelConfig, node: NodeConfig | None = None) -> Ranks:
    """Nothing is started yet. node: this host, the head, if there are several."""
    if config.num_ranks == 1:
        return ONE_RANK
    return SeveralRanks(config, hosts=None if node is None else HeadHosts(node, config))
