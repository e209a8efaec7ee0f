"""What each rank tells of itself, in shared memory: numbers that one process writes and rank 0 reads, at any time."""

from __future__ import annotations

import mmap
import os
from enum import IntEnum, auto

_WORD = 8
_WORDS = 32  # of a rank
ROW_BYTES = _WORDS * _WORD


class Fact(IntEnum):
    """HEARTBEAT: grows as long as the process runs. PLANS_DONE: plans that were carried out, or failed. PLANS_FAILED:
    of these; LAST_FAILED: the number of the latest of them, the first plan is 1. TRANSFERS_FINISHED: the highest
    transfer_id so far, plus 1. MESSAGES, LATENCY_NS, MAX_LATENCY_NS: control messages taken; from written to taken, of
    them all and the longest. BUSY_NS: from taking plans to having launched them. WAITING_NS: for messages.
    MEMORY_BYTES: of the device, that this process's allocator has taken. KV_BYTES: of its part of the KV blocks.
    COMPUTE_NS: of the device for plans, where there are stages, without those in which the stage before was waited for.
    TRAINING_NS: likewise of its layer steps of trainings. TRAINING_FAULTS: trainings that failed on this rank, and
    are to end; OUT_OF_MEMORY: of these, for want of memory.
    ADAPTERS: of which the rank holds its part in the host's memory. EXCHANGES, EXCHANGE_NS: with other ranks, that
    were timed. Rank 0 has KV_BYTES, COMPUTE_NS, EXCHANGES and EXCHANGE_NS alone."""

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
    """memory: descriptor of the shared pages. Each fact has one writer; a reader may be a moment late."""

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
        """All its facts, for a reader on another host."""
        return self._words[rank * _WORDS : (rank + 1) * _WORDS].tobytes()

    def put_row(self, rank: int, row: bytes) -> None:
        """What the rank's own host told. Raises ValueError where that is no row."""
        if len(row) != ROW_BYTES:
            raise ValueError(f"a rank's facts are {ROW_BYTES} bytes, not {len(row)}")
        self._words[rank * _WORDS : (rank + 1) * _WORDS] = memoryview(row).cast("q")

    def note_exchange(self, rank: int, nanoseconds: int) -> None:
        self.add(rank, Fact.EXCHANGES, 1)
        self.add(rank, Fact.EXCHANGE_NS, nanoseconds)

    def note_computed(self, rank: int, compute_s: float | None) -> None:
        """Of a plan's result; None: not timed."""
        if compute_s is not None:
            self.add(rank, Fact.COMPUTE_NS, int(compute_s * 1e9))

    def note_training(self, rank: int, seconds: float, fault: Exception | None) -> None:
        """Of a plan's layer steps. fault: that ends their training and nothing else."""
        self.add(rank, Fact.TRAINING_NS, int(seconds * 1e9))
        if fault is not None:
            # Torch's, which is not imported here, has a name alone.
            is_memory = isinstance(fault, MemoryError) or type(fault).__name__ == "OutOfMemoryError"
            self.add(rank, Fact.OUT_OF_MEMORY, int(is_memory))
            self.add(rank, Fact.TRAINING_FAULTS, 1)

    def add(self, rank: int, fact: Fact, amount: int) -> None:
        """By the one who writes this rank's facts."""
        self._words[rank * _WORDS + fact] += amount
