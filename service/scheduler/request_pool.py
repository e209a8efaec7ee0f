"""ORCA's request pool (section 4.1): every accepted request that has not ended, waiting or running."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from service.core.sequence import Sequence
from service.core.sequence_group import GroupStatus, SequenceGroup


class RequestPool:
    """`waiting` is in order of arrival, `running` in order of start. Engine thread only."""

    def __init__(self) -> None:
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self._groups: dict[str, SequenceGroup] = {}
        self._members: dict[int, tuple[SequenceGroup, Sequence]] = {}
        self._fresh_tokens: dict[int, int] = {}  # of those that wait for their first start, by order of arrival
        self._num_fresh_tokens = 0
        self._paused: dict[int, SequenceGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, request_id: str) -> SequenceGroup | None:
        return self._groups.get(request_id)

    def member(self, sequence_id: int) -> tuple[SequenceGroup, Sequence] | None:
        """The live sequence of that id and its group; None once either has ended."""
        return self._members.get(sequence_id)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the waiting groups have to compute. Asked for in every iteration, so those that have never run,
        which may be a thousand, are not looked at: theirs stay as many as they were."""
        return self._num_fresh_tokens + sum(group.num_tokens_to_compute for group in self._paused.values())

    @property
    def preempted(self) -> Collection[SequenceGroup]:
        """The waiting groups that have run before."""
        return self._paused.values()

    def groups(self) -> list[SequenceGroup]:
        return list(self._groups.values())

    def add(self, group: SequenceGroup) -> None:
        assert group.request.request_id not in self._groups
        self._groups[group.request.request_id] = group
        self._members.update({s.sequence_id: (group, s) for s in group.sequences})
        self.waiting.append(group)
        self._fresh_tokens[group.arrival_order] = group.num_tokens_to_compute
        self._num_fresh_tokens += group.num_tokens_to_compute

    def start(self, group: SequenceGroup) -> None:
        """A waiting group becomes the last running one."""
        self._stop_waiting(group)
        group.status = GroupStatus.RUNNING
        self.running.append(group)

    def pause(self, group: SequenceGroup) -> None:
        """A running group takes its place among the waiting again."""
        self.running.remove(group)
        group.status = GroupStatus.WAITING
        insort(self.waiting, group, key=lambda other: other.arrival_order)
        self._paused[group.arrival_order] = group

    def remove_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """The sequence has ended; its group may go on."""
        group.live.remove(sequence)
        del self._members[sequence.sequence_id]

    def remove(self, group: SequenceGroup) -> None:
        """The group has ended; its sequences have been removed before."""
        assert not group.live
        if group.status is GroupStatus.RUNNING:
            self.running.remove(group)
        else:
            self._stop_waiting(group)
        group.status = GroupStatus.ENDED
        del self._groups[group.request.request_id]

    def _stop_waiting(self, group: SequenceGroup) -> None:
        self.waiting.remove(group)
        if self._paused.pop(group.arrival_order, None) is None:
            self._num_fresh_tokens -= self._fresh_tokens.pop(group.arrival_order)
