"""Drafts by prompt lookup: what stood behind the last few tokens where they stood before (Saxena, 2023).

No model guesses them. Text that copies (code that is edited, passages that are quoted, JSON with the same keys) is full
of them, and other text has few.
"""

from __future__ import annotations

from typing import Protocol

from service.core.sequence import Sequence

LONGEST, SHORTEST = 3, 2
"""Tokens that must have stood there before; a longer match is believed first."""

WINDOW = 16_384
"""So many of the last tokens are looked at: a bound on time and memory."""


class Drafter(Protocol):
    """Of one sequence. Engine thread only."""

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        """At most `num` ids that may follow the sequence's first `num_known` ones. Those are known, and become no
        fewer from call to call."""
        ...


class NgramDrafts:
    """A Drafter. The tokens are kept as a string of one character each: `str.rfind` finds the last place of a few
    among thousands in microseconds, where an index would take hundreds of bytes a token."""

    __slots__ = ("_num_seen", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._num_seen = 0

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        """What follows the last place of the last tokens. Where that is fewer than `num` tokens back, the text repeats
        itself, and so does the draft."""
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
