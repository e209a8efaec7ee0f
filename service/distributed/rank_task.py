"""What rank 0 and another rank tell each other at start, and what the other one has made of it. Values only."""

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
    """What a rank's process inherits: descriptors of the control ring, the ranks' facts, the file in which they meet,
    and the socket over which adapters come. parent: the process id of who started it. seat: its place among the
    `num_local` ranks of its host, from 0. reader: of the ring. The first word over its lifeline; the next one is its
    task."""

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
    """Of ranks on several hosts. port: of this host's loopback interface, where a TCPStore answers. interface: of the
    network by which the hosts reach each other; None: the libraries choose."""

    port: int
    interface: str | None


@dataclass(frozen=True, slots=True)
class RankTask:
    """As the arguments of `load_executor` (service/runner/load.py), how its log is written, and who computes what.

    meeting: where ranks of several hosts meet; None: in the file that those of one host inherit."""

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
    """The rank could not be started. message: for people."""

    message: str


class HoldsAdapters(Protocol):
    """A rank's parts of adapters (service/lora/adapter_store.py), which rank 0 has read. Any thread."""

    def take(self, adapter_id: int, file: Path) -> None: ...

    def drop(self, adapter_id: int) -> None:
        """Whether it has it or not."""
        ...

    @property
    def num_taken(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RankModel:
    """executor: of this rank's part. kv_bytes: its part of all KV blocks. memory_bytes: what this process's allocator
    has of the device by now; any thread. is_gpu: a device of its own computes. adapters: None where none are served.
    note_drawn: where the last stage's draws are embedded; None elsewhere. capture: has CUDA graphs from now on."""

    executor: Executor
    kv_bytes: int
    memory_bytes: Callable[[], int]
    is_gpu: bool
    adapters: HoldsAdapters | None = None
    note_drawn: NoteDrawn | None = None
    capture: Callable[[Capture], None] = lambda capture: None
