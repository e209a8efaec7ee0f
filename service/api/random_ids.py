"""Ids that cannot be guessed."""

from __future__ import annotations

import secrets

_ID_BYTES = 16
_AT_ONCE = 256


class RandomIds:
    """32 hexadecimal digits each, from the system's random numbers. Many are read at a time: the system call releases
    the GIL, and while the engine works it takes up to a switch interval to get it back."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def next(self) -> str:
        if not self._left:
            digits = secrets.token_hex(_ID_BYTES * _AT_ONCE)
            self._left = [digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES)]
        return self._left.pop()
