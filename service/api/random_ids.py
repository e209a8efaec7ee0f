"""Ids that nobody can guess."""

from __future__ import annotations

import secrets

_ID_BYTES = 16
_AT_ONCE = 256


class RandomIds:
    """32 hexadecimal digits each, of the system's random numbers, many taken at a time: asking the system releases
    the GIL, and while the engine has work it takes up to a switch interval to get it back."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def next(self) -> str:
        if not self._left:
            digits = secrets.token_hex(_ID_BYTES * _AT_ONCE)
            self._left = [digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES)]
        return self._left.pop()
