"""Finds stop strings in text that arrives in pieces, and holds back no more than it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRules:
    """The client's rules for ending a choice: strings and token ids.

    include_stop: the text that ended the choice is shown.
    min_tokens: strings are not looked for in the text of the first `min_tokens` tokens.
    """

    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    min_tokens: int = 0


class StopMatcher:
    """The stop strings of one choice.

    The match that completes earliest wins; of those that complete at the same character, the longest. The text before
    the match is passed on, the match itself only if `include_stop`, what follows it never. Until then only the longest
    suffix of the text that is a prefix of a stop string is held back. The result does not depend on how the text is cut
    into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        assert all(stops), "a stop string is not empty"
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # per stop string: the length of its prefix that the text ends with
        self._held = ""
        self._include_stop = include_stop
        self.stop: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show. After a match `stop` is set, and nothing more comes."""
        if not self._stops:
            return text
        if self.stop is not None:
            return ""
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            stop = self._advance(char)
            if stop is not None:
                self.stop, self._held = stop, ""
                return pending[: end if self._include_stop else end - len(stop)]
        # A stop string that will be shown anyway need not be held back.
        safe = len(pending) - (0 if self._include_stop else max(self._matched))
        self._held = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """The text that was held back, when no more can come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Move each stop's automaton (Knuth, Morris, Pratt) by one character. Returns the longest stop that
        completes."""
        completed = None
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = self._borders[index][matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                completed = completed or stop
                matched = 0
            self._matched[index] = matched
        return completed


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
