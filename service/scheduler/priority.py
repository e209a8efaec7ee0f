"""Higher priority first; equal priorities in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class ByPriority:
    """A flood of high-priority requests starves the others, as it is meant to."""

    def begins_to_wait(self, group: SequenceGroup) -> None:
        pass

    def stops_waiting(self, group: SequenceGroup) -> None:
        pass

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        return sorted(waiting, key=_urgency, reverse=True)  # stable: equal priorities stay in order of arrival

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        return max(running, key=_rank)


def _urgency(group: SequenceGroup) -> int:
    return group.request.priority


def _rank(group: SequenceGroup) -> tuple[int, int]:
    return -group.request.priority, group.arrival_order
