"""How a preempted group comes back: from host memory, or computed again (AdaptiveLLM, section 3.1, Algorithm 1)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from service.core.iteration_plan import IterationPlan
from service.core.sequence_group import SequenceGroup
from service.scheduler.preemption_cost import PreemptionCost, num_attended_pairs


class Recovery(Enum):
    RECOMPUTE = auto()
    SWAP = auto()


class Preemption(Protocol):
    def choose(self, group: SequenceGroup, num_blocks: int) -> Recovery:
        """For a group that holds `num_blocks` distinct blocks, for which the host has room."""
        ...

    def observe(self, plan: IterationPlan, seconds: float) -> None:
        """An iteration took so long to execute."""
        ...


class AlwaysRecompute:
    def choose(self, group: SequenceGroup, num_blocks: int) -> Recovery:
        return Recovery.RECOMPUTE

    def observe(self, plan: IterationPlan, seconds: float) -> None:
        pass


class AlwaysSwap:
    """Swaps whatever has been computed; with nothing computed there is nothing to move."""

    def choose(self, group: SequenceGroup, num_blocks: int) -> Recovery:
        return Recovery.SWAP if num_computed_tokens(group) else Recovery.RECOMPUTE

    def observe(self, plan: IterationPlan, seconds: float) -> None:
        pass


class AdaptivePreemption:
    """The cheaper of the two by prediction."""

    def __init__(self, cost: PreemptionCost) -> None:
        self._cost = cost

    def choose(self, group: SequenceGroup, num_blocks: int) -> Recovery:
        recompute_s = self._cost.recompute_s(num_computed_tokens(group))
        return Recovery.SWAP if self._cost.swap_s(num_blocks) < recompute_s else Recovery.RECOMPUTE

    def observe(self, plan: IterationPlan, seconds: float) -> None:
        """Iterations that only decode are alike and many; they would crowd out what recomputation looks like.

        Where nothing is drawn the executor need not have waited for the device, so the time says nothing.
        """
        is_prefill = plan.num_scheduled_tokens > 2 * len(plan.scheduled)
        if is_prefill and any(s.samples for s in plan.scheduled):
            pairs = sum(num_attended_pairs(s.num_computed_tokens, len(s.token_ids)) for s in plan.scheduled)
            self._cost.observe(plan.num_scheduled_tokens, pairs, seconds)


def num_computed_tokens(group: SequenceGroup) -> int:
    """Tokens to compute again if the group's cache is dropped; its choices compute the prompt once."""
    leader, *others = group.computing
    return leader.num_computed_tokens + sum(max(0, s.num_computed_tokens - s.num_prompt_tokens) for s in others)
