"""How a preempted group comes back: swapped in, or recomputed (AdaptiveLLM, section 3.4, Algorithm 1). And who is
spared from preemption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.core.sequence_group import SequenceGroup
from service.prediction.preemption_cost import Recovery, RecoveryCosts


class Preemption(Protocol):
    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        """Called only if the host has room for the group's blocks."""
        ...


class AlwaysRecompute:
    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return Recovery.RECOMPUTE


class AlwaysSwap:
    """Swaps whenever something was computed; otherwise there is nothing to move."""

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return Recovery.SWAP if num_computed_tokens(group) else Recovery.RECOMPUTE


class AdaptivePreemption:
    """The cheaper of the two, by the seconds that each adds to the iterations that carry it (`PreemptionCost`)."""

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return costs.cheaper


def may_be_preempted(running: Sequence[SequenceGroup], max_preemptions: int) -> Sequence[SequenceGroup]:
    """The groups preempted fewer than `max_preemptions` times; all, if there are none.

    So no group has to start over forever while others could be taken. This outranks the scheduling policy: an earlier
    arrival may be preempted for a later one that has reached its bound.
    """
    return [group for group in running if group.num_preemptions < max_preemptions] or running


def num_computed_tokens(group: SequenceGroup) -> int:
    """Tokens to recompute if the group's cache is dropped; the choices' shared prompt counts once."""
    leader, *others = group.computing
    return leader.num_computed_tokens + sum(max(0, s.num_computed_tokens - s.num_prompt_tokens) for s in others)
