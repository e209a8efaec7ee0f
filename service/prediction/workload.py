"""What determines an iteration's time."""

from __future__ import annotations

from typing import NamedTuple

from service.core.iteration import IterationPlan


class Workload(NamedTuple):
    """What determines an iteration's time.

    num_tokens: computed tokens. num_pairs: pairs of a prompt token and a token that it attends to. num_read: tokens
    that the decodes attend to, in all. longest_context: the most tokens that any prompt's last token attends to.
    num_decodes, num_prompts: sequences that compute one token, and those that compute more. heat: at its start.
    """

    num_tokens: int
    num_pairs: int
    num_read: int
    longest_context: int
    num_decodes: int
    num_prompts: int
    heat: float = 0.0

    @classmethod
    def of(cls, plan: IterationPlan, heat: float = 0.0) -> Workload:
        """The workload of a plan."""
        decodes = plan.decodes
        num_decodes, num_tokens = len(decodes), decodes.num_tokens
        num_read, pairs, longest, num_prompts = int(decodes.num_computed_tokens.sum()) + num_tokens, 0, 0, 0
        for item in plan.scheduled:
            start, count = item.num_computed_tokens, len(item.token_ids)
            num_tokens += count
            if count == 1:
                num_decodes += 1
                num_read += start + 1
            else:
                num_prompts += 1
                pairs += num_attended_pairs(start, count)
                longest = max(longest, start + count)
        return cls(num_tokens, pairs, num_read, longest, num_decodes, num_prompts, heat)

    @classmethod
    def of_decodes(cls, num_decodes: int, num_read: int, heat: float = 0.0) -> Workload:
        """Decodes that attend to `num_read` tokens in all."""
        return cls(num_decodes, 0, num_read, 0, num_decodes, 0, heat)

    @classmethod
    def of_chunk(
        cls, start: int, num_tokens: int, num_decodes: int = 0, num_read: int = 0, heat: float = 0.0
    ) -> Workload:
        """Tokens start, start + 1, ... of one sequence, beside decodes that attend to `num_read` tokens in all."""
        return cls.of_decodes(num_decodes, num_read, heat).with_chunk(start, num_tokens)

    def with_chunk(self, start: int, num_tokens: int) -> Workload:
        """This workload plus tokens start, start + 1, ... of one more sequence."""
        return self._replace(
            num_tokens=self.num_tokens + num_tokens,
            num_pairs=self.num_pairs + num_attended_pairs(start, num_tokens),
            longest_context=max(self.longest_context, start + num_tokens),
            num_prompts=self.num_prompts + 1,
        )

    def decodes(self) -> Workload:
        """The decodes of this workload alone."""
        return Workload.of_decodes(self.num_decodes, self.num_read, self.heat)


def num_attended_pairs(start: int, num_tokens: int) -> int:
    """Pairs of a computed token and a token that it attends to, for computed tokens at start, start + 1, ..."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2
