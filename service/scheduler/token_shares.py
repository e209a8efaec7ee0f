"""Token-fair shares: among the clients with waiting requests, the one served least goes next."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup
from service.scheduler.history import History


class TokenShares:
    """A client is an API key; within a client, first come, first served."""

    def __init__(self, history: History) -> None:
        self._history = history

    def begins_to_wait(self, group: SequenceGroup) -> None:
        pass

    def stops_waiting(self, group: SequenceGroup) -> None:
        pass

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        served = {client: self._history.served(client) for client in {group.request.client for group in waiting}}
        return sorted(waiting, key=lambda group: served[group.request.client])  # stable: equal ones stay as they came

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        return max(running, key=self._rank)

    def _rank(self, group: SequenceGroup) -> tuple[int, int]:
        return self._history.served(group.request.client), group.arrival_order
