"""How long each request has waited for its next token: what inter-token latency is made of."""

from __future__ import annotations

from service.core.sequence_group import SequenceGroup


class TokenGaps:
    """The gaps that end in the present iteration. Engine thread only.

    Requests that decode side by side had their last tokens at the same moment, so gaps are counted by that moment: one
    entry stands for many requests.
    """

    def __init__(self) -> None:
        self._num_since: dict[float, int] = {}
        self._now_s = 0.0

    def note(self, group: SequenceGroup, now_s: float) -> None:
        """The iteration whose result came at `now_s` has drawn a token of this group. Called once for each of its
        choices, it counts once: their tokens come side by side.
        """
        last_s, group.last_token_s, self._now_s = group.last_token_s, now_s, now_s
        if last_s is not None and last_s != now_s:
            self._num_since[last_s] = self._num_since.get(last_s, 0) + 1

    def note_batch(self, num_groups: int, last_s: float, now_s: float) -> None:
        """As `note`, of `num_groups` groups whose tokens before came with the previous iteration, at `last_s`."""
        self._now_s = now_s
        if num_groups:
            self._num_since[last_s] = self._num_since.get(last_s, 0) + num_groups

    def take(self) -> tuple[tuple[float, int], ...]:
        """Pairs of a gap in seconds and the number of tokens that came after such a gap, since the last call."""
        taken = tuple((self._now_s - since_s, count) for since_s, count in self._num_since.items())
        self._num_since.clear()
        return taken
