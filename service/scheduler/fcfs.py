"""First come, first served (ORCA, section 4.2). The latest arrival is preempted first, and returns
before newer ones (PagedAttention, section 4.5)."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class FirstComeFirstServed:
    """Keeps ORCA's iteration-level property: who arrived earlier has run in at least as many iterations.

    But for those who sit iterations out, and so may fall behind: where iterations overlap, requests whose drawn ids the
    host must know first, by one iteration; and those whose blocks are being swapped out or in, by as many as the copies
    take. And `max_preemptions` outranks it.
    """

    def begins_to_wait(self, group: SequenceGroup) -> None:
        pass

    def stops_waiting(self, group: SequenceGroup) -> None:
        pass

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        return tuple(waiting)

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        return max(running, key=lambda group: group.arrival_order)
