"""A queue for AdaptiveLLM's fairness-based scheduling (section 3.5): members by priority, and their mean priority.

A member's priority, (time since arrival) / length, changes all the time. But among members of equal length the earliest
always has the highest priority, and the sum of priorities is linear in time. So neither needs a visit to all members.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from service.core.sequence_group import SequenceGroup

_Entry = tuple[float, int, int, int, list[SequenceGroup]]
"""Ordered by: negated priority; arrival order, which is unique. Then: index in the list, length, the list itself."""


class FairQueue:
    """Engine thread only. A member's length in tokens is taken when it is added, since it cannot grow while it waits.

    members: by length; each list in order of arrival.
    """

    def __init__(self) -> None:
        self.members: dict[int, list[SequenceGroup]] = {}
        self._lengths: dict[int, int] = {}  # by arrival order
        self._inverse_lengths = 0.0  # sum of 1 / length
        self._scaled_arrivals = 0.0  # sum of arrival / length

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, group: SequenceGroup) -> None:
        length = max(len(sequence.token_ids) for sequence in group.live)
        self._lengths[group.arrival_order] = length
        insort(self.members.setdefault(length, []), group, key=_arrival)
        self._inverse_lengths += 1 / length
        self._scaled_arrivals += group.request.arrival_s / length

    def remove(self, group: SequenceGroup) -> None:
        length = self._lengths.pop(group.arrival_order)
        members = self.members[length]
        members.remove(group)
        if not members:
            del self.members[length]
        if not self._lengths:  # also drops rounding errors
            self._inverse_lengths = self._scaled_arrivals = 0.0
            return
        self._inverse_lengths -= 1 / length
        self._scaled_arrivals -= group.request.arrival_s / length

    def total_priority(self, now_s: float) -> float:
        """Sum of the members' priorities."""
        return now_s * self._inverse_lengths - self._scaled_arrivals


def by_priority(queues: Sequence[FairQueue], now_s: float) -> Iterator[SequenceGroup]:
    """The members of all queues, highest priority first; on equal priority, the earliest arrival first. Members already
    yielded may be removed while iterating."""
    heads = [_entry(members, 0, length, now_s) for queue in queues for length, members in queue.members.items()]
    heapify(heads)
    while heads:
        _, _, index, length, members = heads[0]
        group = members[index]
        if not index:
            members = members.copy()
        if index + 1 < len(members):
            heapreplace(heads, _entry(members, index + 1, length, now_s))
        else:
            heappop(heads)
        yield group


def mean_priority(queues: Sequence[FairQueue], now_s: float) -> float:
    """Mean priority over all members of these queues; -inf if there are none."""
    num_members = sum(map(len, queues))
    return sum(queue.total_priority(now_s) for queue in queues) / num_members if num_members else float("-inf")


def fair_priority(length: int, arrival_s: float, now_s: float) -> float:
    """Seconds since arrival, per token of length."""
    return (now_s - arrival_s) / length


def _entry(members: list[SequenceGroup], index: int, length: int, now_s: float) -> _Entry:
    group = members[index]
    return -fair_priority(length, group.request.arrival_s, now_s), group.arrival_order, index, length, members


def _arrival(group: SequenceGroup) -> tuple[float, int]:
    return group.request.arrival_s, group.arrival_order
