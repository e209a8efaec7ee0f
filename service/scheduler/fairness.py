"""AdaptiveLLM's fairness-based scheduling (section 3.5, Algorithm 2): short requests do not wait behind long ones.

A request's priority is its time since arrival divided by its length in tokens: it grows while the request waits,
faster for short ones, so nobody starves. A queue's priority is the mean of its members'; the queue of preempted
requests and the queue of new ones compete as a whole. New ones, being short, mostly win.

Two rules differ from the paper's, because its own preempt often and dearly. It pauses the request of lowest priority,
the longest: the dearest to bring back. Here the one that started last gives way, which has the least to lose. And it
starts new ones until all have started, while those paused for them fill the host's memory and are dropped from then on,
to be computed again: here the paused go first while the host is nearly full, and of them those that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from service.core.sequence_group import SequenceGroup
from service.kvcache.swap_space import SwapSpace

SPARE_HOST_SHARE = 1 / 8
"""Of the host's blocks: with fewer free, most of those who are paused would have to be dropped."""

Queue = list[tuple[float, SequenceGroup]]
"""Priorities and groups."""


class Fair:
    """swap_space: where those may go that give way; without any, all of them are dropped, whoever goes first."""

    def __init__(self, swap_space: SwapSpace) -> None:
        self._swap_space = swap_space

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        """The queue of higher mean priority first, and within a queue the request of higher priority first. If the host
        is nearly full, first those that it holds, then the others that were preempted."""
        preempted, new = Queue(), Queue()
        for group in waiting:
            (preempted if group.num_preemptions else new).append((fair_priority(group, now_s), group))
        if self._is_host_nearly_full():
            queues = [*self._by_place(preempted), new]
        else:
            queues = sorted((preempted, new), key=_mean, reverse=True)
        return [group for queue in queues for _, group in sorted(queue, key=itemgetter(0), reverse=True)]

    def victim(self, running: Sequence[SequenceGroup], now_s: float) -> SequenceGroup:
        """The group that started last."""
        return running[-1]

    def _by_place(self, preempted: Queue) -> tuple[Queue, Queue]:
        """Those on the host, and those that were dropped."""
        swapped, dropped = Queue(), Queue()
        for priority, group in preempted:
            is_swapped = self._swap_space.holds(group.leader.sequence_id)
            (swapped if is_swapped else dropped).append((priority, group))
        return swapped, dropped

    def _is_host_nearly_full(self) -> bool:
        num_free, num_used = self._swap_space.num_free, self._swap_space.num_used
        return num_used > 0 and num_free <= SPARE_HOST_SHARE * (num_free + num_used)


def fair_priority(group: SequenceGroup, now_s: float) -> float:
    """Seconds since arrival for each token of the request's longest sequence."""
    live = group.live
    length = len(live[0].token_ids) if len(live) == 1 else max(len(sequence.token_ids) for sequence in live)
    return (now_s - group.request.arrival_s) / length


def _mean(queue: Queue) -> float:
    return sum(priority for priority, _ in queue) / len(queue) if queue else float("-inf")
