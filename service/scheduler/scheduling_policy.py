"""Which group goes next, and which is preempted: the question of every scheduling policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from service.core.sequence_group import SequenceGroup


class SchedulingPolicy(Protocol):
    """Asked by the scheduler, on the engine thread. Seconds are on the engine's clock."""

    def begins_to_wait(self, group: SequenceGroup) -> None:
        """The group is new; or it was preempted, and its blocks have been swapped out or dropped by now."""
        ...

    def stops_waiting(self, group: SequenceGroup) -> None:
        """The group starts, or has ended."""
        ...

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Iterable[SequenceGroup]:
        """The order in which to try to start the waiting groups, which are given in order of arrival. A group may be
        started before the next one is taken from the result."""
        ...

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        """The running group to preempt first. running: in order of start."""
        ...
