"""How long each request has waited for its next token: what inter-token latency is made of."""

from __future__ import annotations

from collections.abc import Iterable

from service.core.sequence_group import SequenceGroup


class TokenGaps:
    """The gaps that end in the present iteration. Engine thread only.

    Counted by the moment of the token before, which requests that decode side by side have in common: so one entry
    stands for many of them.
    """

    def __init__(self) -> None:
        self._num_since: dict[float, int] = {}
        self._now_s = 0.0

    def note(self, groups: Iterable[SequenceGroup], now_s: float) -> None:
        """An iteration, whose result came at `now_s`, has drawn a token of each of these groups. One that is named for
        each of its choices counts once: their tokens come side by side.
        """
        num_since, self._now_s = self._num_since, now_s
        for group in groups:
            last_s, group.last_token_s = group.last_token_s, now_s
            if last_s is not None and last_s != now_s:
                num_since[last_s] = num_since.get(last_s, 0) + 1

    def note_lockstep(self, num_groups: int, last_s: float, now_s: float) -> None:
        """As `note`, of so many groups that all drew a token in the iteration before, whose result came at `last_s`."""
        self._now_s = now_s
        if num_groups:
            self._num_since[last_s] = self._num_since.get(last_s, 0) + num_groups

    def take(self) -> tuple[tuple[float, int], ...]:
        """Seconds, and how many tokens came after so many; since the last call."""
        taken = tuple((self._now_s - since_s, count) for since_s, count in self._num_since.items())
        self._num_since.clear()
        return taken
