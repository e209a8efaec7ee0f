"""Whom to pause and how it comes back: from host memory, or computed again (AdaptiveLLM, section 3.4, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.core.sequence_group import SequenceGroup
from service.prediction.preemption_cost import Recovery, RecoveryCosts


class Preemption(Protocol):
    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        """For a group for whose blocks the host has room."""
        ...


class AlwaysRecompute:
    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return Recovery.RECOMPUTE


class AlwaysSwap:
    """Swaps whatever has been computed; with nothing computed there is nothing to move."""

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return Recovery.SWAP if num_computed_tokens(group) else Recovery.RECOMPUTE


class AdaptivePreemption:
    """The cheaper of the two by what each adds to the iterations that carry it (`PreemptionCost`)."""

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return costs.cheaper


def may_be_preempted(running: Sequence[SequenceGroup], max_preemptions: int) -> Sequence[SequenceGroup]:
    """Those that have not been preempted `max_preemptions` times already; all of them if that leaves nobody.

    So nobody is made to start over for ever while others could give way. It outranks the scheduling policy: an earlier
    arrival may have to pause for a later one whose bound is reached.
    """
    return [group for group in running if group.num_preemptions < max_preemptions] or running


def num_computed_tokens(group: SequenceGroup) -> int:
    """Tokens to compute again if the group's cache is dropped; its choices compute the prompt once."""
    leader, *others = group.computing
    return leader.num_computed_tokens + sum(max(0, s.num_computed_tokens - s.num_prompt_tokens) for s in others)
