"""The connection between the head and another host: frames over TCP in both directions, each a word and its payload."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from enum import IntEnum, auto
from typing import NamedTuple

SIGN_EVERY_S = 0.1
SILENT_AFTER_S = 5.0
"""After this silence the other host counts as hung or unreachable."""
SILENT_WHILE_LOADING_S = 60.0

MOST_BYTES = 64 << 20
"""Limit on a frame. A plan with very many long block tables, or very many grammar masks, takes a few MiB."""

_FRAME = struct.Struct("!IB")  # num_bytes, word


class Word(IntEnum):
    """What a frame says.

    From the head:

    - GO: load; JSON of the settings that the head decides.
    - CONTROL: a control message: its kind, then its bytes.
    - END: end in order.
    - REFUSED: the host may not join, and why; nothing follows.

    From another host:

    - HELLO: its facts as JSON.
    - LEAVES: it was asked to end, so the head is to drain.

    From both:

    - READY: all ranks of that host are ready; from the head: all hosts are.
    - FACTS: ten times a second, rows of ranks' counters: rank 0's from the head, or that host's ranks' in order.
    - ADAPTER: a piece of an adapter; the answer is an error message, empty on success.
    - LOST: why the ranks are lost.
    """

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
    """The connection is lost. The message names the other side."""


class HostLine:
    """One end of an admitted connection. who: the other side, for people.

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
        """All hosts are ready: from now on silence is noticed within SILENT_AFTER_S."""
        self._connection.settimeout(SILENT_AFTER_S)

    def send(self, word: Word, payload: bytes = b"") -> None:
        """Raises LineLost if the other side does not read, or is gone."""
        with self._sending:
            try:
                self._connection.sendall(_FRAME.pack(len(payload), word) + payload)
            except OSError as fault:
                raise LineLost(f"cannot send to {self.who}: {fault}") from fault

    def receive(self, most_bytes: int = MOST_BYTES) -> Said:
        """The next frame. Raises LineLost if none comes in time, or if it is too large or unknown."""
        num_bytes, word = _FRAME.unpack(self._read(_FRAME.size))
        if num_bytes > most_bytes or word not in list(Word):
            raise LineLost(f"{self.who} sent an invalid frame")
        return Said(Word(word), self._read(num_bytes))

    def finish(self) -> None:
        """Close for sending; what was sent is still delivered."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends a waiting `receive`, too. May be called again."""
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
                raise LineLost(f"nothing received from {self.who} for {seconds:.0f} s") from None
            except ConnectionError:
                raise LineLost(f"{self.who} has ended") from None
            except OSError as fault:  # a network error
                raise LineLost(f"{self.who} cannot be reached: {fault}") from fault
            if not more:
                raise LineLost(f"{self.who} has ended")
            place += more
        return bytes(into)
