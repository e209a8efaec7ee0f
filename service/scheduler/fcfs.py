"""First come, first served (ORCA, section 4.2). The latest arrival is preempted first, and returns before
newer ones start (PagedAttention, section 4.5)."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class FirstComeFirstServed:
    """Keeps ORCA's iteration-level property: an earlier arrival has run in at least as many iterations as a later one.

    Exceptions are groups that skip iterations: by one, where iterations overlap, those whose drawn ids the host must
    know first; by as many as the copies take, those being swapped out or in. `max_preemptions` also takes precedence.
    """

    def begins_to_wait(self, group: SequenceGroup) -> None:
        pass

    def stops_waiting(self, group: SequenceGroup) -> None:
        pass

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        return tuple(waiting)

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        return max(running, key=lambda group: group.arrival_order)
