"""AdaptiveLLM's fairness-based scheduling (section 3.2, Algorithm 2): short requests do not wait behind long ones.

A request's priority is its time since arrival divided by its length in tokens: it grows while the request waits,
faster for short ones, so nobody starves. A queue's priority is the mean of its members'; the queue of preempted
requests and the queue of new ones compete as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from service.core.sequence_group import SequenceGroup


class Fair:
    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        """The queue of higher mean priority first, and within a queue the request of higher priority first."""
        preempted: list[tuple[float, SequenceGroup]] = []
        new: list[tuple[float, SequenceGroup]] = []
        for group in waiting:
            (preempted if group.num_preemptions else new).append((fair_priority(group, now_s), group))
        queues = sorted((preempted, new), key=_mean, reverse=True)
        return [group for queue in queues for _, group in sorted(queue, key=itemgetter(0), reverse=True)]

    def victim(self, running: Sequence[SequenceGroup], now_s: float) -> SequenceGroup:
        return min(running, key=lambda group: (fair_priority(group, now_s), -group.arrival_order))


def fair_priority(group: SequenceGroup, now_s: float) -> float:
    """Seconds since arrival for each token of the request's longest sequence."""
    live = group.live
    length = len(live[0].token_ids) if len(live) == 1 else max(len(sequence.token_ids) for sequence in live)
    return (now_s - group.request.arrival_s) / length


def _mean(queue: list[tuple[float, SequenceGroup]]) -> float:
    return sum(priority for priority, _ in queue) / len(queue) if queue else float("-inf")
