"""A ring of messages in shared memory: rank 0 writes, every other rank of the host reads each message, in order.

A message is one frame: write time, length, kind, checksum, position, payload. A message that is too large is split into
several frames, each written when there is room. The writer never overwrites what a reader has not taken: it waits for
the slowest reader, up to a limit. A reader spins for a while and then sleeps until it is woken, so an idle service uses
no CPU.

Readers learn of a new frame from a byte counter outside the frames. On processors that may show another core's writes
out of order (arm64) a reader can see the counter before the frame; the checksum then fails, and it reads again. A frame
holds its position among all bytes ever written, so a frame of an earlier round is not mistaken for it.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

RING_BYTES = 8 << 20
WRITER_WAITS_S = 5.0
"""How long the writer waits for a reader that takes nothing. A step's host work is milliseconds, and the ring holds
hundreds of messages."""

_FRAME = struct.Struct("<qiiqq")  # written_ns, num_bytes, kind (| _CONTINUED), checksum, position
_CONTINUED = 1 << 16
_WRAP = -1  # num_bytes of a frame that says: continue at the ring's start
_WORD = 8
_LINE_WORDS = 8  # counters of two processes never share a cache line
_LOOK_EVERY_S = 0.001
_REREADS_S = 1.0


class MessageKind(IntEnum):
    """What a message says.

    - PLAN: carry out this plan.
    - MASKS, MASKS_FAILED: the grammar masks, computed or failed, of the oldest plan that still waits for its masks.
    - ADAPTERS_DROPPED: no later plan names these adapter ids.
    - DRAWN: the sampled ids of the oldest plan that still waits for its ids; for the first of several stages.
    - CAPTURE: capture these CUDA graphs; later plans use them.
    """

    PLAN = 1
    MASKS = 2
    MASKS_FAILED = 3
    ADAPTERS_DROPPED = 4
    DRAWN = 5
    CAPTURE = 6


class Message(NamedTuple):
    """written_ns: time of writing on the monotonic clock, which all processes of a host share."""

    kind: MessageKind
    payload: bytes
    written_ns: int


class ReaderStalled(Exception):
    """The reader `who` took nothing for WRITER_WAITS_S, or is dead."""

    def __init__(self, who: str) -> None:
        super().__init__(f"{who} has stopped reading control messages")


class MessageWriter(Protocol):
    """Writes to all other ranks. One thread at a time."""

    def write(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Raises ReaderStalled; part of the message may have been written then, and nothing may be written after it."""
        ...


@dataclass(frozen=True, slots=True)
class RingPlace:
    """The inherited file descriptors of a ring. memory: the shared pages. wake: an eventfd for each reader.

    The memory begins with one cache line for the writer's counter and one for each reader's; the frames follow.
    """

    memory: int
    wake: tuple[int, ...]
    num_bytes: int = RING_BYTES

    @classmethod
    def make(cls, num_readers: int, num_bytes: int = RING_BYTES) -> RingPlace:
        assert num_bytes % _WORD == 0
        memory = os.memfd_create("headrace-control")
        os.ftruncate(memory, _header_bytes(num_readers) + num_bytes)
        return cls(memory, tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(num_readers)), num_bytes)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.memory, *self.wake

    def close(self) -> None:
        """Processes that have mapped the memory keep it."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def _header_bytes(num_readers: int) -> int:
    return (1 + num_readers) * _LINE_WORDS * _WORD


class _Mapped:
    """The shared pages: the counters, then the frames."""

    def __init__(self, place: RingPlace) -> None:
        header = _header_bytes(len(place.wake))
        self._pages = mmap.mmap(place.memory, header + place.num_bytes)
        whole = memoryview(self._pages)
        self.counters = whole[:header].cast("q")
        self.frames = whole[header:]
        self.num_bytes = place.num_bytes


class RingWriter:
    """A MessageWriter. ranks: the readers' ranks in order; None means 1, 2 and so on. is_alive(rank): whether that
    reader's process still runs."""

    def __init__(
        self,
        place: RingPlace,
        is_alive: Callable[[int], bool] = lambda rank: True,
        waits_s: float = WRITER_WAITS_S,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = range(1, 1 + len(place.wake)) if ranks is None else ranks
        self._mapped = _Mapped(place)
        self._wake = place.wake
        self._is_alive = is_alive
        self._waits_s = waits_s
        self._written = 0
        self._most = (place.num_bytes // 4 - _FRAME.size) & -_WORD

    def write(self, kind: MessageKind, payload: bytes = b"") -> None:
        for start in range(0, max(len(payload), 1), self._most):
            part = payload[start : start + self._most]
            self._write_frame(kind | (_CONTINUED if start + len(part) < len(payload) else 0), part)

    def _write_frame(self, kind: int, part: bytes) -> None:
        needed = _FRAME.size + -(-len(part) // _WORD) * _WORD
        place = self._written % self._mapped.num_bytes
        to_end = self._mapped.num_bytes - place
        if to_end < needed:  # no frame crosses the end; without room for a header readers skip by themselves
            self._wait_for_room(to_end)
            if to_end >= _FRAME.size:
                _FRAME.pack_into(self._mapped.frames, place, 0, _WRAP, 0, 0, self._written)
            self._written += to_end
            place = 0
        self._wait_for_room(needed)
        written_ns = time.monotonic_ns()
        self._mapped.frames[place + _FRAME.size : place + _FRAME.size + len(part)] = part
        checksum = _checksum(written_ns, kind, part)
        _FRAME.pack_into(self._mapped.frames, place, written_ns, len(part), kind, checksum, self._written)
        self._written += needed
        self._mapped.counters[0] = self._written
        for wake in self._wake:
            os.eventfd_write(wake, 1)

    def _wait_for_room(self, num_bytes: int) -> None:
        if self._has_room(num_bytes):
            return
        deadline_s = time.monotonic() + self._waits_s
        while not self._has_room(num_bytes):
            slowest = min(range(1, 1 + len(self._wake)), key=self._taken)
            rank = self._ranks[slowest - 1]
            if time.monotonic() > deadline_s or not self._is_alive(rank):
                raise ReaderStalled(f"rank {rank}")
            time.sleep(_LOOK_EVERY_S)

    def _has_room(self, num_bytes: int) -> bool:
        least = min(map(self._taken, range(1, 1 + len(self._wake))), default=self._written)
        return self._written + num_bytes - least <= self._mapped.num_bytes

    def _taken(self, reader: int) -> int:
        return self._mapped.counters[reader * _LINE_WORDS]


class RingReader:
    """The end of reader `reader`, >= 1. One thread at a time.

    spins_s: how long it polls for the next message before it sleeps; 0 where cores are scarce.
    """

    def __init__(self, place: RingPlace, reader: int, spins_s: float = 0.0) -> None:
        self._mapped = _Mapped(place)
        self._wake = place.wake[reader - 1]
        self._counter = reader * _LINE_WORDS
        self._spins_s = spins_s
        self._taken = self._mapped.counters[self._counter]

    @property
    def has_message(self) -> bool:
        """Whether `take` would return without waiting."""
        return self._mapped.counters[0] > self._taken

    def take(self, within_s: float) -> Message | None:
        """The next message; None if none comes within `within_s`. Other threads run while it sleeps."""
        if not self._wait(within_s):
            return None
        first = self._take_frame()
        if not first.kind & _CONTINUED:
            return first.message(first.part)
        parts, last = [first.part], first
        while last.kind & _CONTINUED:
            while not self._wait(_REREADS_S):
                pass
            last = self._take_frame()
            parts.append(last.part)
        return last.message(b"".join(parts))

    def _wait(self, within_s: float) -> bool:
        if self.has_message:
            return True
        now_s = time.monotonic()
        deadline_s, spins_until_s = now_s + within_s, now_s + min(self._spins_s, within_s)
        while time.monotonic() < spins_until_s:
            for _ in range(64):
                if self.has_message:
                    return True
        while not self.has_message:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0:
                return False
            if select.select([self._wake], [], [], left_s)[0]:
                os.eventfd_read(self._wake)  # counts all frames written so far
        return True

    def _take_frame(self) -> _Frame:
        place = self._taken % self._mapped.num_bytes
        to_end = self._mapped.num_bytes - place
        if to_end < _FRAME.size:
            self._taken += to_end
            return self._take_frame()
        give_up_s = time.monotonic() + _REREADS_S
        while True:
            written_ns, num_bytes, kind, checksum, position = _FRAME.unpack_from(self._mapped.frames, place)
            if num_bytes == _WRAP and position == self._taken:
                self._taken += to_end
                return self._take_frame()
            if position == self._taken and 0 <= num_bytes <= to_end - _FRAME.size:
                part = bytes(self._mapped.frames[place + _FRAME.size : place + _FRAME.size + num_bytes])
                if _checksum(written_ns, kind, part) == checksum:
                    break
            assert time.monotonic() < give_up_s, "a control message is damaged"
        self._taken += _FRAME.size + -(-num_bytes // _WORD) * _WORD
        self._mapped.counters[self._counter] = self._taken
        return _Frame(kind, part, written_ns)


class _Frame(NamedTuple):
    kind: int
    part: bytes
    written_ns: int

    def message(self, payload: bytes) -> Message:
        return Message(MessageKind(self.kind & ~_CONTINUED), payload, self.written_ns)


def _checksum(written_ns: int, kind: int, part: bytes) -> int:
    return zlib.crc32(part, written_ns & 0xFFFFFFFF) ^ kind
