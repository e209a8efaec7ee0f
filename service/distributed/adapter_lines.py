"""LoRA adapters on their way to the other ranks.

Rank 0 reads and checks an adapter, once, and hands the whole of it to each other rank as a file in memory, over a
socket of their own; of it each keeps its part. Only when all have it does the adapter exist for the engine, so every
plan that loads it finds it everywhere, and a rank that cannot take it costs one adapter and no plan. What nobody has
any more is told through the control ring, before the next plan: no plan that comes behind can name it, and those before
have been launched.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.rank_task import HoldsAdapters
from service.errors import ServerError

_ID = struct.Struct("<q")
_TAKEN = b"\0"
_MOST_WORDS = 4096  # bytes of what a rank says of its fault


class AdapterSharing(Protocol):
    """Any thread."""

    def share(self, adapter_id: int, write: Callable[[BinaryIO], None]) -> None:
        """Have every rank take its part of what `write` writes to a file; returns once all have. Raises ServerError if
        one has not, with its words; whoever gave the id is to drop it then."""
        ...

    def drop(self, adapter_id: int) -> None:
        """Nobody has it any more. A finalizer calls it, too."""
        ...


def adapter_file() -> BinaryIO:
    """In memory, until it is closed."""
    return os.fdopen(os.memfd_create("headrace-adapter"), "wb")


def check_taken(faults: Iterable[str]) -> None:
    """Raises ServerError with the first of what was wrong; "" is nothing."""
    for fault in filter(None, faults):
        raise ServerError(f"the adapter could not be taken by every rank: {fault}")


class AdapterLines:
    """The ends of who stands for rank 0 on a host: a socket for each other rank there, which keep messages apart.
    ranks: their numbers; from 1 on if left out."""

    def __init__(self, lines: Sequence[socket.socket], ranks: Sequence[int] | None = None) -> None:
        self._lines = dict(zip(range(1, 1 + len(lines)) if ranks is None else ranks, lines, strict=True))
        self._lock = threading.Lock()
        self._dropped = deque[int]()

    def share(self, adapter_id: int, write: Callable[[BinaryIO], None]) -> None:
        with adapter_file() as file:
            write(file)
            file.flush()
            faults = self.share_file(adapter_id, file.fileno())
        check_taken(faults)

    def share_file(self, adapter_id: int, file: int) -> list[str]:
        """As `share`, of an open file. Returns what was wrong, of those where something was."""
        with self._lock:
            faults = {rank: self._send(rank, adapter_id, file) for rank in self._lines}
            faults |= {rank: self._answer(rank) for rank, fault in faults.items() if not fault}
        return [fault for fault in faults.values() if fault]

    def drop(self, adapter_id: int) -> None:
        self._dropped.append(adapter_id)

    def take_dropped(self) -> tuple[int, ...]:
        """Those that the other ranks have not been told of yet."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))

    def _send(self, rank: int, adapter_id: int, file: int) -> str:
        """What was wrong; "" for nothing."""
        try:
            socket.send_fds(self._lines[rank], [_ID.pack(adapter_id)], [file])
        except OSError as fault:
            return f"rank {rank}: {fault.strerror}"
        return ""

    def _answer(self, rank: int) -> str:
        """Of a rank that is lost, soon: its end of the line is closed then."""
        try:
            words = self._lines[rank].recv(_MOST_WORDS)
        except OSError as fault:
            return f"rank {rank}: {fault.strerror}"
        return "" if words == _TAKEN else f"rank {rank}: {words.decode(errors='replace') or 'has ended'}"


class AdapterTaker:
    """The end of rank `rank`, >= 1: a thread takes what comes, until rank 0 is gone."""

    def __init__(self, rank: int, line: socket.socket, adapters: HoldsAdapters, statuses: RankStatuses) -> None:
        self._rank = rank
        self._line = line
        self._adapters = adapters
        self._statuses = statuses
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="adapters", daemon=True).start()

    def drop(self, adapter_ids: Sequence[int]) -> None:
        """The thread that carries out plans, between two of them."""
        with self._lock:
            for adapter_id in adapter_ids:
                self._adapters.drop(adapter_id)
            self._note()

    def _run(self) -> None:
        with self._line, contextlib.suppress(OSError):  # rank 0 has ended, and so does this process
            while True:
                message, files, *_ = socket.recv_fds(self._line, _ID.size, 1)
                if not message:
                    return
                (adapter_id,) = _ID.unpack(message)
                self._line.send(self._taken(adapter_id, *files))

    def _taken(self, adapter_id: int, file: int) -> bytes:
        try:
            self._adapters.take(adapter_id, Path(f"/proc/self/fd/{file}"))
        except Exception as fault:  # of memory that is short, above all
            return f"{type(fault).__name__}: {fault}".encode()[:_MOST_WORDS]
        finally:
            os.close(file)
        with self._lock:
            self._note()
        return _TAKEN

    def _note(self) -> None:
        self._statuses.set(self._rank, Fact.ADAPTERS, self._adapters.num_taken)
