"""AdaptiveLLM's fairness-based scheduling (section 3.5, Algorithm 2): short requests do not wait behind long ones.

A request's priority is (time since arrival) / (length in tokens). It grows while the request waits, faster for short
ones, so no request starves. A queue's priority is the mean of its members'. Two queues compete as wholes: swapped
requests, and those to be computed (new, or dropped by a preemption). New ones, being short, mostly win.

Three rules differ from the paper's:
- The paper pauses the request of lowest priority, usually the longest and so the most expensive to bring back. Here the
  victim is the one preempted least often, and among equals the one that started last, which has the least to lose. So
  a request that has just returned is not paused again for the next one.
- The paper starts new requests until all have started. The paused ones fill the host's memory, and further ones must be
  dropped and recomputed. Here, while the host is nearly full, paused requests go first, swapped before dropped.
- The paper compares the means of the requests that fit, and takes from one queue per iteration. Here whole queues are
  compared, which needs no visit to each member, and what the first queue leaves goes to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from service.core.sequence_group import SequenceGroup
from service.kvcache.swap_space import SwapSpace
from service.scheduler.fair_queue import FairQueue, by_priority, mean_priority

SPARE_HOST_SHARE = 1 / 16
"""Share of the host's blocks. With fewer free, most victims would have to be dropped."""


class Fair:
    """swap_space: where victims are swapped to; if it has no blocks, all are dropped, and the host is never full."""

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
        """The queue of higher mean priority first, each queue by priority. While the host is nearly full: swapped
        requests first, then dropped ones, then new ones."""
        swapped, dropped, new = self._swapped, self._dropped, self._new
        if self._is_host_nearly_full():
            turns = [[swapped], [dropped], [new]]
        else:
            turns = sorted(([swapped], [dropped, new]), key=lambda queues: mean_priority(queues, now_s), reverse=True)
        return chain.from_iterable(by_priority(queues, now_s) for queues in turns)

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        """Of the groups preempted least often, the one that started last."""
        return min(reversed(running), key=_num_preemptions)

    def _is_host_nearly_full(self) -> bool:
        num_free, num_used = self._swap_space.num_free, self._swap_space.num_used
        return num_used > 0 and num_free <= SPARE_HOST_SHARE * (num_free + num_used)


def _num_preemptions(group: SequenceGroup) -> int:
    return group.num_preemptions
