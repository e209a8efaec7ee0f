"""AdaptiveLLM's fairness-based scheduling (section 3.5, Algorithm 2): short requests do not wait behind long ones.

A request's priority is its time since arrival divided by its length in tokens: it grows while the request waits,
faster for short ones, so nobody starves. A queue's priority is the mean of its members'; the queue of swapped
requests and the queue of those to be computed, new or dropped, compete as a whole. New ones, being short, mostly win.

Three rules differ from the paper's:
- It pauses the request of lowest priority, mostly the longest: the dearest to bring back. Here who was preempted least
  often gives way, and of those the one that started last, which has the least to lose. So nobody who has just returned
  is chased out again by the next one.
- It starts new ones until all have started. Those paused for them fill the host's memory; from then on they are
  dropped and computed again. Here the paused go first while the host is nearly full, and of them those that it holds.
- It compares the means of those that fit, and takes from one queue an iteration. Here whole queues are compared, which
  needs no look at each member, and what the first one leaves goes to the other, so that no seat stays empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from service.core.sequence_group import SequenceGroup
from service.kvcache.swap_space import SwapSpace
from service.scheduler.fair_queue import FairQueue, by_priority, mean_priority

SPARE_HOST_SHARE = 1 / 16
"""Of the host's blocks: with fewer free, most of those who are paused would have to be dropped."""


class Fair:
    """swap_space: where those may go that give way; without any, all of them are dropped, whoever goes first."""

    def __init__(self, swap_space: SwapSpace) -> None:
        self._swap_space = swap_space
        self._new, self._swapped, self._dropped = FairQueue(), FairQueue(), FairQueue()
        self._queue_of: dict[int, FairQueue] = {}  # by arrival order

    def begins_to_wait(self, group: SequenceGroup) -> None:
        if not group.num_preemptions:
            queue = self._new
        elif self._swap_space.holds(group.leader.sequence_id):
            queue = self._swapped
        else:
            queue = self._dropped
        queue.add(group)
        self._queue_of[group.arrival_order] = queue

    def stops_waiting(self, group: SequenceGroup) -> None:
        self._queue_of.pop(group.arrival_order).remove(group)

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Iterator[SequenceGroup]:
        """The queue of higher mean priority first, and within a queue the request of higher priority first. While the
        host is nearly full, first those that it holds, then the others that were preempted, then the new ones."""
        swapped, dropped, new = self._swapped, self._dropped, self._new
        if self._is_host_nearly_full():
            turns = [[swapped], [dropped], [new]]
        else:
            turns = sorted(([swapped], [dropped, new]), key=lambda queues: mean_priority(queues, now_s), reverse=True)
        return chain.from_iterable(by_priority(queues, now_s) for queues in turns)

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        """Of the groups that were preempted least often the one that started last."""
        return min(reversed(running), key=_num_preemptions)

    def _is_host_nearly_full(self) -> bool:
        num_free, num_used = self._swap_space.num_free, self._swap_space.num_used
        return num_used > 0 and num_free <= SPARE_HOST_SHARE * (num_free + num_used)


def _num_preemptions(group: SequenceGroup) -> int:
    return group.num_preemptions
