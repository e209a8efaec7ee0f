"""ORCA's request pool (section 3, figure 4): every accepted request that has not ended, waiting or running."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection

from service.core.sequence import Sequence
from service.core.sequence_group import GroupStatus, SequenceGroup
from service.kvcache.adapter_slots import AdapterSlots
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.waiting_tokens import WaitingTokens


class RequestPool:
    """`waiting` is in order of arrival, `running` in order of start. Tells the policy which groups wait, and pins the
    adapters of running groups. Engine thread only.

    waiting_tokens: what waiting groups have to compute; tokens_per_prefix_entry: of the prefix cache.
    num_waiting_by_adapter, num_running_by_adapter: groups by adapter name. num_background_waiting,
    num_background_running: background groups. num_others_ended: how many non-background groups have ever ended.
    """

    def __init__(self, policy: SchedulingPolicy, tokens_per_prefix_entry: int, adapter_slots: AdapterSlots) -> None:
        self._policy = policy
        self._adapter_slots = adapter_slots
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self._groups: dict[str, SequenceGroup] = {}
        self._members: dict[int, tuple[SequenceGroup, Sequence]] = {}
        self._paused: dict[int, SequenceGroup] = {}  # by arrival order
        self.waiting_tokens = WaitingTokens(tokens_per_prefix_entry)
        self.num_waiting_by_adapter = Counter[str]()
        self.num_running_by_adapter = Counter[str]()
        self.num_background_waiting = 0
        self.num_background_running = 0
        self.num_others_ended = 0

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, request_id: str) -> SequenceGroup | None:
        """None if there is no live request of this id."""
        return self._groups.get(request_id)

    def member(self, sequence_id: int) -> tuple[SequenceGroup, Sequence] | None:
        """The live sequence of that id and its group; None once either has ended."""
        return self._members.get(sequence_id)

    @property
    def has_others_waiting(self) -> bool:
        """Whether non-background groups wait."""
        return len(self.waiting) > self.num_background_waiting

    @property
    def has_others(self) -> bool:
        """Whether there are non-background groups, waiting or running."""
        return len(self._groups) > self.num_background_waiting + self.num_background_running

    @property
    def preempted(self) -> Collection[SequenceGroup]:
        """Waiting groups that were preempted."""
        return self._paused.values()

    def groups(self) -> list[SequenceGroup]:
        return list(self._groups.values())

    def add(self, group: SequenceGroup) -> None:
        """A newly accepted request starts to wait. Its id must not be in the pool."""
        assert group.request.request_id not in self._groups
        self._groups[group.request.request_id] = group
        self._members.update({s.sequence_id: (group, s) for s in group.sequences})
        self.waiting.append(group)
        self._begin_to_wait(group)

    def start(self, group: SequenceGroup) -> None:
        """A waiting group starts to run; it becomes the last in `running`."""
        self._stop_waiting(group)
        group.status = GroupStatus.RUNNING
        self.running.append(group)
        self._adapter_slots.pin(group.request.adapter)
        _count(self.num_running_by_adapter, group, 1)
        self.num_background_running += group.request.is_background

    def pause(self, group: SequenceGroup) -> None:
        """A preempted group waits again, at its place by arrival."""
        self._stop_running(group)
        group.status = GroupStatus.WAITING
        insort(self.waiting, group, key=lambda other: other.arrival_order)
        self._paused[group.arrival_order] = group
        self._begin_to_wait(group)

    def remove_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """A sequence has ended. Its group may go on."""
        group.live.remove(sequence)
        del self._members[sequence.sequence_id]
        if group.status is GroupStatus.WAITING:
            self.waiting_tokens.update(group)

    def remove(self, group: SequenceGroup) -> None:
        """A group has ended, after all of its sequences were removed."""
        assert not group.live
        if group.status is GroupStatus.RUNNING:
            self._stop_running(group)
        else:
            self._stop_waiting(group)
        group.status = GroupStatus.ENDED
        self.num_others_ended += not group.request.is_background
        del self._groups[group.request.request_id]

    def _stop_running(self, group: SequenceGroup) -> None:
        self.running.remove(group)
        self._adapter_slots.unpin(group.request.adapter)
        _count(self.num_running_by_adapter, group, -1)
        self.num_background_running -= group.request.is_background

    def _begin_to_wait(self, group: SequenceGroup) -> None:
        _count(self.num_waiting_by_adapter, group, 1)
        self.num_background_waiting += group.request.is_background
        self._policy.begins_to_wait(group)
        self.waiting_tokens.begins(group)

    def _stop_waiting(self, group: SequenceGroup) -> None:
        self.waiting.remove(group)
        _count(self.num_waiting_by_adapter, group, -1)
        self.num_background_waiting -= group.request.is_background
        self._paused.pop(group.arrival_order, None)
        self.waiting_tokens.ends(group)
        self._policy.stops_waiting(group)


def _count(num_by_adapter: Counter[str], group: SequenceGroup, more: int) -> None:
    adapter = group.request.adapter
    if adapter is not None:
        num_by_adapter[adapter.name] += more
        if not num_by_adapter[adapter.name]:
            del num_by_adapter[adapter.name]
