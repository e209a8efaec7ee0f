"""How LoRA adapters reach other hosts, whose ranks take them as those of rank 0's host do (service/distributed/
adapter_lines.py).

An adapter goes over the same connection as plans, in pieces. The next piece is sent when the previous one has been
answered, so a plan waits for at most one piece. A host writes the pieces to a file in memory, and answers the last one
when all its ranks have taken their parts.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol

from service.distributed.adapter_lines import AdapterLines, adapter_file, check_taken

PIECE_BYTES = 1 << 18
"""2 ms on a network of 1 Gbit/s."""

_PIECE = struct.Struct("!qQ")  # adapter id, bytes of the whole adapter; the piece's bytes follow
_MOST_WORDS = 4096


class AdapterHost(Protocol):
    """Another host, as the head sees it.

    adapter_answers: its answers to pieces, in order: an error message, or "" for success; one more error if it is lost.
    """

    adapter_answers: queue.SimpleQueue[str]

    def send_piece(self, payload: bytes) -> str:
        """Returns an error message, or "" on success."""
        ...


class AdaptersOfHosts:
    """An AdapterSharing with the ranks of all hosts. local: the lines to the ranks of this host."""

    def __init__(self, local: AdapterLines, hosts: Sequence[AdapterHost]) -> None:
        self._local = local
        self._hosts = hosts
        self._lock = threading.Lock()

    def share(self, adapter_id: int, write: Callable[[BinaryIO], None]) -> None:
        with self._lock, adapter_file() as file:
            write(file)
            file.flush()
            faults = self._hand_out(adapter_id, file.fileno(), file.tell())
        check_taken(faults)

    def drop(self, adapter_id: int) -> None:
        """One control message tells all hosts."""
        self._local.drop(adapter_id)

    def _hand_out(self, adapter_id: int, file: int, size: int) -> list[str]:
        faults, hosts = list[str](), list(self._hosts)
        starts = range(0, max(1, size), PIECE_BYTES)
        for start in starts:
            payload = _PIECE.pack(adapter_id, size) + os.pread(file, PIECE_BYTES, start)
            said = [host.send_piece(payload) for host in hosts]
            if start == starts[-1]:
                faults += self._local.share_file(adapter_id, file)
            said = [fault or host.adapter_answers.get() for host, fault in zip(hosts, said, strict=True)]
            hosts = [host for host, fault in zip(hosts, said, strict=True) if not fault]
            faults += filter(None, said)
        return faults


class AdapterAssembly:
    """Another host's side: joins the pieces and hands the adapter to its ranks.

    lines: to its ranks. answer: sends an answer to the head. `take` is for one thread, and does not wait for ranks.
    """

    def __init__(self, lines: AdapterLines, answer: Callable[[bytes], None]) -> None:
        self._lines = lines
        self._answer = answer
        self._file: BinaryIO | None = None

    def take(self, payload: bytes) -> None:
        """Take a piece. Raises ValueError if it is malformed."""
        if len(payload) < _PIECE.size:
            raise ValueError("a piece of an adapter is too short")
        adapter_id, size = _PIECE.unpack_from(payload)
        try:
            file = self._file = self._file or adapter_file()
            file.write(payload[_PIECE.size :])
            file.flush()
            is_whole = file.tell() >= size
        except (OSError, MemoryError) as fault:
            self._give_up()
            self._answer(_words(f"{type(fault).__name__}: {fault}"))
            return
        if is_whole:
            self._file = None
            threading.Thread(target=self._share, args=(adapter_id, file), name="adapter", daemon=True).start()
        else:
            self._answer(b"")

    def _share(self, adapter_id: int, file: BinaryIO) -> None:
        with file:
            faults = [fault for fault in self._lines.share_file(adapter_id, file.fileno()) if fault]
        self._answer(_words("; ".join(faults)))

    def _give_up(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _words(text: str) -> bytes:
    return text.encode()[:_MOST_WORDS]
