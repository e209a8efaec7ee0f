"""What each rank reports about itself: counters in shared memory, which rank 0 reads at any time."""

from __future__ import annotations

import mmap
import os
from enum import IntEnum, auto

_WORD = 8
_WORDS = 32  # per rank
ROW_BYTES = _WORDS * _WORD


class Fact(IntEnum):
    """A rank's counters. Times are nanoseconds.

    - HEARTBEAT: grows as long as the process runs.
    - PLANS_DONE: plans that were carried out or failed. PLANS_FAILED: those that failed.
    - LAST_FAILED: number of the latest plan that failed; the first plan is 1.
    - TRANSFERS_FINISHED: the highest transfer_id that has finished, plus 1.
    - MESSAGES: control messages taken. LATENCY_NS, MAX_LATENCY_NS: sum and maximum of their times from write to take.
    - BUSY_NS: from taking plans to having launched them. WAITING_NS: waiting for messages.
    - MEMORY_BYTES: device memory that this process's allocator has reserved.
    - KV_BYTES: size of this rank's part of the KV blocks.
    - ADAPTERS: adapters of which the rank holds its part in host memory.
    - EXCHANGES, EXCHANGE_NS: timed exchanges with other ranks.
    - COMPUTE_NS: device time of plans, without waiting for the previous stage; only with stages.
    - TRAINING_NS: the same for layer steps of trainings.
    - TRAINING_FAULTS: trainings that failed on this rank and must end. OUT_OF_MEMORY: those that ran out of memory.

    Rank 0 sets PLANS_DONE, LAST_FAILED, KV_BYTES, COMPUTE_NS, EXCHANGES and EXCHANGE_NS only.
    """

    HEARTBEAT = 0
    PLANS_DONE = auto()
    PLANS_FAILED = auto()
    LAST_FAILED = auto()
    TRANSFERS_FINISHED = auto()
    MESSAGES = auto()
    LATENCY_NS = auto()
    MAX_LATENCY_NS = auto()
    BUSY_NS = auto()
    WAITING_NS = auto()
    MEMORY_BYTES = auto()
    KV_BYTES = auto()
    ADAPTERS = auto()
    EXCHANGES = auto()
    EXCHANGE_NS = auto()
    COMPUTE_NS = auto()
    TRAINING_NS = auto()
    TRAINING_FAULTS = auto()
    OUT_OF_MEMORY = auto()


class RankStatuses:
    """memory: descriptor of the shared pages. Each counter has one writer; a reader may see a slightly old value."""

    def __init__(self, memory: int, num_ranks: int) -> None:
        self._pages = mmap.mmap(memory, num_ranks * _WORDS * _WORD)
        self._words = memoryview(self._pages).cast("q")
        self.num_ranks = num_ranks

    @staticmethod
    def make_memory(num_ranks: int) -> int:
        memory = os.memfd_create("headrace-ranks")
        os.ftruncate(memory, num_ranks * _WORDS * _WORD)
        return memory

    def get(self, rank: int, fact: Fact) -> int:
        return self._words[rank * _WORDS + fact]

    def set(self, rank: int, fact: Fact, value: int) -> None:
        self._words[rank * _WORDS + fact] = value

    def row(self, rank: int) -> bytes:
        """All counters of a rank, for a reader on another host."""
        return self._words[rank * _WORDS : (rank + 1) * _WORDS].tobytes()

    def put_row(self, rank: int, row: bytes) -> None:
        """Store the counters that the rank's own host sent. Raises ValueError if `row` has the wrong length."""
        if len(row) != ROW_BYTES:
            raise ValueError(f"a rank's counters take {ROW_BYTES} bytes, not {len(row)}")
        self._words[rank * _WORDS : (rank + 1) * _WORDS] = memoryview(row).cast("q")

    def note_exchange(self, rank: int, nanoseconds: int) -> None:
        self.add(rank, Fact.EXCHANGES, 1)
        self.add(rank, Fact.EXCHANGE_NS, nanoseconds)

    def note_computed(self, rank: int, compute_s: float | None) -> None:
        """compute_s: of a plan's result; None if it was not timed."""
        if compute_s is not None:
            self.add(rank, Fact.COMPUTE_NS, int(compute_s * 1e9))

    def note_training(self, rank: int, seconds: float, fault: Exception | None) -> None:
        """Note a plan's layer steps. fault: one that ends their training and nothing else."""
        self.add(rank, Fact.TRAINING_NS, int(seconds * 1e9))
        if fault is not None:
            # torch's class is known by its name only: torch is not imported here.
            is_memory = isinstance(fault, MemoryError) or type(fault).__name__ == "OutOfMemoryError"
            self.add(rank, Fact.OUT_OF_MEMORY, int(is_memory))
            self.add(rank, Fact.TRAINING_FAULTS, 1)

    def add(self, rank: int, fact: Fact, amount: int) -> None:
        """Only for the process that writes this counter."""
        self._words[rank * _WORDS + fact] += amount
