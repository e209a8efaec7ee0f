"""Who goes next, and who must pause: the question that every scheduling policy answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from service.core.sequence_group import SequenceGroup


class SchedulingPolicy(Protocol):
    """Asked by the scheduler, engine thread only. Seconds are on the engine's clock."""

    def begins_to_wait(self, group: SequenceGroup) -> None:
        """The group is new; or it was preempted, and what it held has been swapped or dropped."""
        ...

    def stops_waiting(self, group: SequenceGroup) -> None:
        """It starts, or it has ended."""
        ...

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Iterable[SequenceGroup]:
        """The waiting groups, given in order of arrival, in the order in which to try to start them. Each may be
        started before the next one is asked for."""
        ...

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        """The running group that gives its memory up first; they are given in order of start."""
        ...
