"""Who goes next, and who must pause: the question that every scheduling policy answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.core.sequence_group import SequenceGroup


class SchedulingPolicy(Protocol):
    """Asked by the scheduler, engine thread only. Seconds are on the engine's clock."""

    def order(self, waiting: Sequence[SequenceGroup], now_s: float) -> Sequence[SequenceGroup]:
        """The waiting groups, given in order of arrival, in the order in which to try to start them."""
        ...

    def victim(self, running: Sequence[SequenceGroup], now_s: float) -> SequenceGroup:
        """The running group that gives its memory up first; they are given in order of start."""
        ...
