"""How many tokens an iteration has computed and drawn, by kind."""

from __future__ import annotations

from service.core.sequence import Sequence


class ProcessedTokens:
    """generated: drawn. prompt: computed for the first time. recomputed: computed again, after a preemption. gaps: of
    the drawn ones (`IterationStats.token_gaps`)."""

    __slots__ = ("gaps", "generated", "prompt", "recomputed")

    def __init__(self) -> None:
        self.generated = 0
        self.prompt = 0
        self.recomputed = 0
        self.gaps: tuple[tuple[float, int], ...] = ()

    def add(self, sequence: Sequence, start: int, end: int, num_drawn: int) -> None:
        """Count a share of the iteration: tokens `start` to `end` were computed."""
        fresh = max(start, sequence.recompute_until)
        self.generated += num_drawn
        self.recomputed += max(0, min(end, sequence.recompute_until) - start)
        self.prompt += max(0, min(end, sequence.num_prompt_tokens) - fresh)
