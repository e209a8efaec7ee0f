"""What rank 0 and another rank send each other at start, and the model that the rank has loaded. Plain values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.config import ONE_PROCESS, CacheConfig, LoraConfig, ModelSource, ParallelConfig
from service.distributed.control_ring import RingPlace
from service.distributed.drawn_messages import NoteDrawn
from service.distributed.told_captures import Capture
from service.engine.ports import Executor
from service.process.log_format import LogFormat


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a rank's process inherits; the first message over its lifeline. Its task is the next one.

    seat: the rank's index among the `num_local` ranks of its host. reader: the rank's reader number in the control
    ring. parent: the process id of its parent. The rest are file descriptors: ring: of the control ring. statuses: of
    the ranks' counters. meeting_point: of the file in which ranks of one host meet. adapters: of the socket for
    adapters.
    """

    rank: int
    num_ranks: int
    seat: int
    num_local: int
    reader: int
    parent: int
    ring: RingPlace
    statuses: int
    meeting_point: int
    adapters: int


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where ranks of several hosts meet.

    port: of a TCPStore on this host's loopback interface. interface: the network interface that reaches the other
    hosts; None lets gloo and NCCL choose.
    """

    port: int
    interface: str | None


@dataclass(frozen=True, slots=True)
class RankTask:
    """The arguments of `load_executor` (service/runner/load.py), how to log, and how ranks divide the model.

    meeting: where ranks of several hosts meet; None on one host, whose ranks meet in the file that they inherit.
    """

    source: ModelSource
    folder: Path
    cache: CacheConfig
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool
    log_level: str
    log_format: LogFormat
    lora: LoraConfig | None = None
    parallel: ParallelConfig = ONE_PROCESS
    choices: Path | None = None
    meeting: MeetingPlace | None = None


@dataclass(frozen=True, slots=True)
class RankReady:
    """The rank has loaded its part and takes plans."""


@dataclass(frozen=True, slots=True)
class RankFault:
    """The rank could not start, or has failed. message: for people."""

    message: str


class HoldsAdapters(Protocol):
    """A rank's parts of adapters that rank 0 has read (service/lora/adapter_store.py). Any thread."""

    def take(self, adapter_id: int, file: Path) -> None: ...

    def drop(self, adapter_id: int) -> None:
        """Does nothing if the rank does not have it."""
        ...

    @property
    def num_taken(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RankModel:
    """A rank's loaded part of the model.

    executor: runs it. kv_bytes: its part of the KV blocks. memory_bytes: device memory that this process's allocator
    has reserved now; any thread. is_gpu: whether it computes on a GPU. adapters: None if none are served. note_drawn:
    takes the ids that the last stage samples; None if this rank does not embed them. capture: captures CUDA graphs.
    """

    executor: Executor
    kv_bytes: int
    memory_bytes: Callable[[], int]
    is_gpu: bool
    adapters: HoldsAdapters | None = None
    note_drawn: NoteDrawn | None = None
    capture: Callable[[Capture], None] = lambda capture: None
