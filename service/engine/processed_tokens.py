"""What an iteration has computed and drawn, by kind, and how long each request had waited for its token."""

from __future__ import annotations

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup


class ProcessedTokens:
    """Of the iteration whose result came at `now_s`. Engine thread only.

    generated: drawn. prompt: computed for the first time. recomputed: computed again, after a preemption. drafts: as of
    IterationStats.
    """

    __slots__ = ("_now_s", "_num_since", "drafts", "generated", "prompt", "recomputed")

    def __init__(self, now_s: float) -> None:
        self.generated = 0
        self.prompt = 0
        self.recomputed = 0
        self.drafts: list[tuple[int, int]] = []
        self._now_s = now_s
        # Requests that decode side by side had their last tokens at the same moment: one entry stands for many.
        self._num_since: dict[float, int] = {}

    def add(self, sequence: Sequence, start: int, end: int, num_drawn: int) -> None:
        """Tokens `start` to `end` of the sequence were computed."""
        fresh = max(start, sequence.recompute_until)
        self.generated += num_drawn
        self.recomputed += max(0, min(end, sequence.recompute_until) - start)
        self.prompt += max(0, min(end, sequence.num_prompt_tokens) - fresh)

    def note_gap(self, group: SequenceGroup) -> None:
        """A token of the group was drawn. Called for each of its choices, it counts once: their tokens come side by
        side."""
        last_s, group.last_token_s = group.last_token_s, self._now_s
        if last_s is not None and last_s != self._now_s:
            self._count(last_s, 1)

    def add_decodes(self, num_tokens: int, last_s: float) -> None:
        """So many tokens of the decode batch were drawn; those before them came at `last_s`."""
        self.generated += num_tokens
        if num_tokens:
            self._count(last_s, num_tokens)

    def gaps(self) -> tuple[tuple[float, int], ...]:
        """`IterationStats.token_gaps`: what inter-token latency is made of."""
        return tuple((self._now_s - since_s, count) for since_s, count in self._num_since.items())

    def _count(self, last_s: float, num_gaps: int) -> None:
        self._num_since[last_s] = self._num_since.get(last_s, 0) + num_gaps
