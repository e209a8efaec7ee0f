"""AdaptiveLLM's fairness-based scheduling (section 3.2, Algorithm 2): short requests do not wait behind long ones.

A request's priority is its time since arrival divided by its length in tokens: it grows while the request waits,
faster for short ones, so nobody starves. A queue's priority is the mean of its members'; the queue of preempted
requests and the queue of new ones compete as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class Fair:
    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        """The queue of higher mean priority first, and within a queue the request of higher priority first."""
        priority = {group.arrival_order: fair_priority(group, now_s) for group in waiting}
        preempted = [group for group in waiting if group.num_preemptions > 0]
        new = [group for group in waiting if group.num_preemptions == 0]
        queues = sorted((preempted, new), key=lambda queue: -_mean([priority[g.arrival_order] for g in queue]))
        return [g for queue in queues for g in sorted(queue, key=lambda group: -priority[group.arrival_order])]

    def victim(self, running: Sequence[SequenceGroup], now_s: float) -> SequenceGroup:
        return min(running, key=lambda group: (fair_priority(group, now_s), -group.arrival_order))


def fair_priority(group: SequenceGroup, now_s: float) -> float:
    """Seconds since arrival for each token of the request's longest sequence."""
    return (now_s - group.request.arrival_s) / max(sequence.num_tokens for sequence in group.live)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("-inf")
