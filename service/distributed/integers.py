"""Control messages: rows of integers.

A tuple is written as its length and its members, an absent value as a flag, a float as its 64 bits. Encoding and
decoding take one pass, in time proportional to the number of integers, and a message holds nothing but numbers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ITEM = "q"
_FLOAT, _BITS = struct.Struct("<d"), struct.Struct("<q")

Int64Array = npt.NDArray[np.int64]


class IntegerWriter:
    """Collects the integers of one message, in the order in which the reader asks for them."""

    def __init__(self) -> None:
        self._integers = array(_ITEM)

    def one(self, value: int) -> None:
        self._integers.append(value)

    def many(self, values: Sequence[int]) -> None:
        """A tuple of integers."""
        self._integers.append(len(values))
        self._integers.extend(values)

    def column(self, values: Int64Array) -> None:
        self._integers.append(len(values))
        self._integers.frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def real(self, value: float) -> None:
        """Exact to the bit."""
        self._integers.append(_BITS.unpack(_FLOAT.pack(value))[0])

    def message(self) -> bytes:
        return self._integers.tobytes()


class IntegerReader:
    """Returns what was written, in the same order. Raises ValueError if the message ends too early."""

    def __init__(self, message: bytes) -> None:
        self._integers = array(_ITEM)
        self._integers.frombytes(message)
        self._next = 0

    def one(self) -> int:
        place = self._next
        if place >= len(self._integers):
            raise ValueError("a control message ends too early")
        self._next = place + 1
        return self._integers[place]

    def many(self) -> tuple[int, ...]:
        return tuple(self._integers[self._take()])

    def column(self) -> Int64Array:
        """A copy that the caller may keep."""
        return np.array(self._integers[self._take()], np.int64)

    def real(self) -> float:
        value: float = _FLOAT.unpack(_BITS.pack(self.one()))[0]
        return value

    @property
    def is_at_end(self) -> bool:
        return self._next == len(self._integers)

    def _take(self) -> slice:
        length = self.one()
        first, stop = self._next, self._next + length
        if length < 0 or stop > len(self._integers):
            raise ValueError("a control message ends too early")
        self._next = stop
        return slice(first, stop)
