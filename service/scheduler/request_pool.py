"""ORCA's request pool (section 4.1): every accepted request that has not ended, waiting or running."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from service.core.sequence import Sequence
from service.core.sequence_group import GroupStatus, SequenceGroup


class RequestPool:
    """`waiting` is in order of arrival, `running` in order of start. Engine thread only."""

    def __init__(self) -> None:
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self._groups: dict[str, SequenceGroup] = {}
        self._members: dict[int, tuple[SequenceGroup, Sequence]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, request_id: str) -> SequenceGroup | None:
        return self._groups.get(request_id)

    @property
    def members(self) -> Mapping[int, tuple[SequenceGroup, Sequence]]:
        """The live sequences by id, each with its group."""
        return self._members

    def member(self, sequence_id: int) -> tuple[SequenceGroup, Sequence] | None:
        """The live sequence of that id and its group; None once either has ended."""
        return self._members.get(sequence_id)

    def groups(self) -> list[SequenceGroup]:
        return list(self._groups.values())

    def add(self, group: SequenceGroup) -> None:
        assert group.request.request_id not in self._groups
        self._groups[group.request.request_id] = group
        self._members.update({s.sequence_id: (group, s) for s in group.sequences})
        self.waiting.append(group)

    def start(self, group: SequenceGroup) -> None:
        """A waiting group becomes the last running one."""
        self.waiting.remove(group)
        group.status = GroupStatus.RUNNING
        self.running.append(group)

    def pause(self, group: SequenceGroup) -> None:
        """A running group takes its place among the waiting again."""
        self.running.remove(group)
        group.status = GroupStatus.WAITING
        insort(self.waiting, group, key=lambda other: other.arrival_order)

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
            self.waiting.remove(group)
        group.status = GroupStatus.ENDED
        del self._groups[group.request.request_id]
