"""Requests of higher priority first, equal ones in the order of their arrival."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class ByPriority:
    """A flood of important requests starves the others: that is what was asked for."""

    def begins_to_wait(self, group: SequenceGroup) -> None:
        pass

    def stops_waiting(self, group: SequenceGroup) -> None:
        pass

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        return sorted(waiting, key=_urgency, reverse=True)  # stable, so equal ones stay as they came

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        return max(running, key=_rank)


def _urgency(group: SequenceGroup) -> int:
    return group.request.priority


def _rank(group: SequenceGroup) -> tuple[int, int]:
    return -group.request.priority, group.arrival_order
