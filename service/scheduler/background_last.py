"""Background requests go after all others, whatever the scheduling policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from service.core.sequence_group import SequenceGroup
from service.scheduler.scheduling_policy import SchedulingPolicy


class BackgroundLast:
    """`policy` orders the other requests and never sees background ones. These start in order of arrival, after all
    waiting others, and are preempted first, the latest arrival first."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._num_waiting = 0

    def begins_to_wait(self, group: SequenceGroup) -> None:
        if group.request.is_background:
            self._num_waiting += 1
        else:
            self._policy.begins_to_wait(group)

    def stops_waiting(self, group: SequenceGroup) -> None:
        if group.request.is_background:
            self._num_waiting -= 1
        else:
            self._policy.stops_waiting(group)

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Iterable[SequenceGroup]:
        if not self._num_waiting:
            return self._policy.order(waiting, now_s)
        others = [group for group in waiting if not group.request.is_background]
        background = [group for group in waiting if group.request.is_background]
        return chain(self._policy.order(others, now_s), background)

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        background = [group for group in running if group.request.is_background]
        return max(background, key=_arrival) if background else self._policy.victim(running)


def _arrival(group: SequenceGroup) -> int:
    return group.arrival_order
