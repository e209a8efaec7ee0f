"""How LoRA adapters reach the other ranks.

Rank 0 reads and checks an adapter once. It hands each other rank the whole adapter as a file in memory, over a socket
of that rank's own, and each rank keeps its part. The engine sees the adapter only after all ranks have it: every plan
that loads it finds it on every rank, and a rank that cannot take it fails that adapter and no plan.

An adapter that is no longer in use is dropped by a message in the control ring, ahead of the next plan: later plans
cannot name it, and earlier ones have been launched.
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
_MOST_WORDS = 4096  # bytes of a rank's error message


class AdapterSharing(Protocol):
    """Shares adapters with the other ranks. Any thread."""

    def share(self, adapter_id: int, write: Callable[[BinaryIO], None]) -> None:
        """Have every rank take its part of the file that `write` writes; returns once all have.

        Raises ServerError with a rank's message if it failed; the caller then drops the id.
        """
        ...

    def drop(self, adapter_id: int) -> None:
        """The adapter is no longer in use. Finalizers call it, too."""
        ...


def adapter_file() -> BinaryIO:
    """A file in memory, which exists until it is closed."""
    return os.fdopen(os.memfd_create("headrace-adapter"), "wb")


def check_taken(faults: Iterable[str]) -> None:
    """Raises ServerError with the first message that is not empty."""
    for fault in filter(None, faults):
        raise ServerError(f"a rank could not load the adapter: {fault}")


class AdapterLines:
    """Rank 0's ends of the lines to the ranks of one host, or another host's that stands in for rank 0.

    lines: a SOCK_SEQPACKET socket for each of these ranks. ranks: their numbers; None means 1, 2 and so on.
    """

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
        """As `share`, with an open file descriptor. Returns the error messages of the ranks that failed."""
        with self._lock:
            faults = {rank: self._send(rank, adapter_id, file) for rank in self._lines}
            faults |= {rank: self._answer(rank) for rank, fault in faults.items() if not fault}
        return [fault for fault in faults.values() if fault]

    def drop(self, adapter_id: int) -> None:
        self._dropped.append(adapter_id)

    def take_dropped(self) -> tuple[int, ...]:
        """The dropped ids that the other ranks have not been told yet; each is returned once."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))

    def _send(self, rank: int, adapter_id: int, file: int) -> str:
        """Returns an error message, or "" on success."""
        try:
            socket.send_fds(self._lines[rank], [_ID.pack(adapter_id)], [file])
        except OSError as fault:
            return f"rank {rank}: {fault.strerror}"
        return ""

    def _answer(self, rank: int) -> str:
        """Wait for the rank's answer; an error message, or "" on success. If the rank dies, its socket closes and ends
        the wait."""
        try:
            words = self._lines[rank].recv(_MOST_WORDS)
        except OSError as fault:
            return f"rank {rank}: {fault.strerror}"
        return "" if words == _TAKEN else f"rank {rank}: {words.decode(errors='replace') or 'its process has ended'}"


class AdapterTaker:
    """The end of rank `rank`, >= 1: a thread that takes adapters until rank 0 is gone."""

    def __init__(self, rank: int, line: socket.socket, adapters: HoldsAdapters, statuses: RankStatuses) -> None:
        self._rank = rank
        self._line = line
        self._adapters = adapters
        self._statuses = statuses
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="adapters", daemon=True).start()

    def drop(self, adapter_ids: Sequence[int]) -> None:
        """Called between two plans, on the thread that follows them."""
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
        except Exception as fault:  # mostly, memory is short
            return f"{type(fault).__name__}: {fault}".encode()[:_MOST_WORDS]
        finally:
            os.close(file)
        with self._lock:
            self._note()
        return _TAKEN

    def _note(self) -> None:
        self._statuses.set(self._rank, Fact.ADAPTERS, self._adapters.num_taken)
