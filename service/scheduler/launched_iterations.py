"""The iterations that run, and the blocks that must outlive them: what a running iteration touches is not freed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.lockstep_members import LockstepIteration


class IterationGroups(NamedTuple):
    """An iteration's requests, in the order of its `scheduled`: those in lockstep, if any, then the groups of the
    others."""

    in_lockstep: LockstepIteration | None
    apart: list[SequenceGroup]

    def groups(self) -> list[SequenceGroup]:
        """All its groups, in that order."""
        if self.in_lockstep is None:
            return self.apart
        return [*(decode.group for decode in self.in_lockstep.members.decodes), *self.apart]


class LaunchedIterations:
    """Iterations finish in the order of their launches. Engine thread only.

    The blocks of a sequence that ends are given back once no running iteration contains it; then the executor is told
    that it may forget the sequence.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._running: deque[IterationGroups] = deque()
        self._num_finished = 0
        self._leaving: list[Sequence] = []
        self._released: list[int] = []

    def __len__(self) -> int:
        return len(self._running)

    @property
    def next_number(self) -> int:
        """Of the next iteration to be launched; the first is 1."""
        return self._num_finished + len(self._running) + 1

    def begin(self, whose: IterationGroups) -> None:
        """The next iteration is launched."""
        self._running.append(whose)

    def finish(self) -> IterationGroups:
        """The oldest iteration has ended."""
        self._num_finished += 1
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self.free(sequence)
        return self._running.popleft()

    def free(self, sequence: Sequence) -> None:
        """Give back what the sequence holds, as soon as may be."""
        if sequence.last_iteration > self._num_finished:
            self._leaving.append(sequence)
        elif self._blocks.holds(sequence.sequence_id):
            self._blocks.free(sequence.sequence_id)
            self._released.append(sequence.sequence_id)

    def release(self, sequence_ids: Iterable[int]) -> None:
        """The executor may forget these."""
        self._released += sequence_ids

    def take_released(self) -> tuple[int, ...]:
        """Ids of sequences released since the last call, for the executor to forget."""
        released, self._released = tuple(self._released), []
        return released
