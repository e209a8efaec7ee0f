"""A queue of AdaptiveLLM's fairness-based scheduling (section 3.5): its members by priority, and their mean priority.

A member's priority, its time since arrival divided by its length, changes all the time. But of two of one length the
earlier always has the higher one, and a sum of priorities is linear in time. So neither question looks at all members.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from service.core.sequence_group import SequenceGroup

_Entry = tuple[float, int, int, int, list[SequenceGroup]]
"""The least one goes first: priority, negated; arrival order, no two alike; place among the members of that length."""


class FairQueue:
    """Engine thread only. A member's length in tokens is taken when it is added: who waits does not grow.

    members: by length; those of one length in order of arrival.
    """

    def __init__(self) -> None:
        self.members: dict[int, list[SequenceGroup]] = {}
        self._lengths: dict[int, int] = {}  # by arrival order
        self._inverse_lengths = 0.0  # their sum
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
        if not self._lengths:  # and no rounding error is kept
            self._inverse_lengths = self._scaled_arrivals = 0.0
            return
        self._inverse_lengths -= 1 / length
        self._scaled_arrivals -= group.request.arrival_s / length

    def total_priority(self, now_s: float) -> float:
        """The sum of the members' priorities."""
        return now_s * self._inverse_lengths - self._scaled_arrivals


def by_priority(queues: Sequence[FairQueue], now_s: float) -> Iterator[SequenceGroup]:
    """The members of all of these, the highest priority first, equal ones as they came. A member that was given may be
    removed before the next one is asked for."""
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
    """Of all members of these together; below any if there are none."""
    num_members = sum(map(len, queues))
    return sum(queue.total_priority(now_s) for queue in queues) / num_members if num_members else float("-inf")


def fair_priority(length: int, arrival_s: float, now_s: float) -> float:
    """Seconds since arrival for each token."""
    return (now_s - arrival_s) / length


def _entry(members: list[SequenceGroup], index: int, length: int, now_s: float) -> _Entry:
    group = members[index]
    return -fair_priority(length, group.request.arrival_s, now_s), group.arrival_order, index, length, members


def _arrival(group: SequenceGroup) -> tuple[float, int]:
    return group.request.arrival_s, group.arrival_order
