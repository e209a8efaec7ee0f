"""The line between the head and another host: frames over TCP, both ways, each a word and its bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from enum import IntEnum, auto
from typing import NamedTuple

SIGN_EVERY_S = 0.1
SILENT_AFTER_S = 5.0
"""Without a word: then the other host hangs, or cannot be reached."""
SILENT_WHILE_LOADING_S = 60.0

MOST_BYTES = 64 << 20
"""Of a frame: a plan of very many long tables, or the masks of very many grammars, are a few MiB."""

_FRAME = struct.Struct("!IB")  # num_bytes, word


class Word(IntEnum):
    """From the head: GO (as JSON: what a task says besides what each host knows), CONTROL (a message's kind and bytes),
    END (in order), REFUSED (why, and nothing follows). From another host: HELLO (as JSON: its facts), LEAVES (it was
    asked to end: the head is to drain). From both: READY (all ranks there are; the head says so once all hosts are),
    ten times a second FACTS (rows of ranks' facts, the head's own one or those of that host's ranks in order), ADAPTER
    (a piece of one, and its answer: what was wrong), and LOST (why: nothing can go on)."""

    HELLO = auto()
    GO = auto()
    READY = auto()
    CONTROL = auto()
    FACTS = auto()
    LEAVES = auto()
    LOST = auto()
    END = auto()
    REFUSED = auto()
    ADAPTER = auto()


class Said(NamedTuple):
    word: Word
    payload: bytes

    @property
    def text(self) -> str:
        return self.payload.decode(errors="replace")


class LineLost(Exception):
    """Nothing more can be heard, or said. Its words say whose line it was."""


class HostLine:
    """One side's end of a connection that was admitted. who: is at the other end, for people.

    `send` is for any thread, `receive` for one.
    """

    def __init__(self, connection: socket.socket, who: str) -> None:
        self.who = who
        self._connection = connection
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(SILENT_WHILE_LOADING_S)

    @property
    def own_address(self) -> str:
        return str(self._connection.getsockname()[0])

    def expect_signs(self) -> None:
        """All are ready: from now on silence is noticed in SILENT_AFTER_S."""
        self._connection.settimeout(SILENT_AFTER_S)

    def send(self, word: Word, payload: bytes = b"") -> None:
        """Raises LineLost where the other side takes nothing, or is gone."""
        with self._sending:
            try:
                self._connection.sendall(_FRAME.pack(len(payload), word) + payload)
            except OSError as fault:
                raise LineLost(f"{self.who} takes nothing: {fault}") from fault

    def receive(self, most_bytes: int = MOST_BYTES) -> Said:
        """The next frame. Raises LineLost where none comes in time, or one that is too large or unknown."""
        num_bytes, word = _FRAME.unpack(self._read(_FRAME.size))
        if num_bytes > most_bytes or word not in list(Word):
            raise LineLost(f"{self.who} does not speak as this host does")
        return Said(Word(word), self._read(num_bytes))

    def finish(self) -> None:
        """Nothing more is said; what was is still delivered."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Whoever waits in `receive` is told. May be called again."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, num_bytes: int) -> bytes:
        into = bytearray(num_bytes)
        view, place = memoryview(into), 0
        while place < num_bytes:
            try:
                more = self._connection.recv_into(view[place:])
            except TimeoutError:
                seconds = self._connection.gettimeout()
                raise LineLost(f"{self.who} gives no sign of life for {seconds:.0f} s") from None
            except ConnectionError:
                raise LineLost(f"{self.who} has ended") from None
            except OSError as fault:  # of its network
                raise LineLost(f"{self.who} cannot be reached: {fault}") from fault
            if not more:
                raise LineLost(f"{self.who} has ended")
            place += more
        return bytes(into)
