"""Drafts by prompt lookup (Saxena, 2023): find the last few tokens earlier in the text; propose what followed.

No draft model is needed. Text that copies (edited code, quoted passages, JSON with repeated keys) gives many right
drafts, other text few.
"""

from __future__ import annotations

from typing import Protocol

from service.core.sequence import Sequence

LONGEST, SHORTEST = 3, 2
"""Lengths of the n-grams that are looked up, longest first."""

WINDOW = 16_384
"""How many of the last tokens are searched: bounds time and memory."""


class Drafter(Protocol):
    """Drafts for one sequence. Engine thread only."""

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        """Up to `num` ids that may follow the sequence's first `num_known` tokens, whose ids are known. num_known never
        decreases from call to call."""
        ...


class NgramDrafts:
    """A Drafter. Tokens are kept as a string with one character per id: `str.rfind` searches thousands of them in
    microseconds, while an index would take hundreds of bytes per token."""

    __slots__ = ("_num_seen", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._num_seen = 0

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        """What followed the latest match. If that is fewer than `num` tokens, the text repeats itself with that period,
        and so does the draft."""
        text = self._up_to_date(sequence.token_ids, num_known)
        for length in range(LONGEST, SHORTEST - 1, -1):
            place = text.rfind(text[-length:], 0, len(text) - 1)
            if place >= 0:
                behind = place + length
                period = len(text) - behind
                return tuple(ord(text[behind + i % period]) for i in range(num))
        return ()

    def _up_to_date(self, token_ids: list[int], num_known: int) -> str:
        start = max(self._num_seen, num_known - WINDOW)
        kept = self._text if len(self._text) < 2 * WINDOW else self._text[-WINDOW:]
        self._text = kept + "".join(map(chr, token_ids[start:num_known]))
        self._num_seen = num_known
        return self._text
