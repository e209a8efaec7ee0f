"""The iterations that run, and the blocks that must outlive them: what a running iteration touches is not freed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.decode_members import DecodeMembers


class LaunchedGroups(NamedTuple):
    """An iteration's requests, in the order of its plan: those of the decode batch, if any, then the others, one for
    each scheduled item. batch: of the lane whose iteration it is; None if it is a training's. has_drafts: the lane's
    next iteration hangs on how many are right."""

    decodes: DecodeMembers | None
    scheduled: list[SequenceGroup]
    batch: DecodeBatch | None = None
    has_drafts: bool = False

    def all(self) -> list[SequenceGroup]:
        """In that order."""
        return self.scheduled if self.decodes is None else [*self.decodes.groups, *self.scheduled]


class LaunchedIterations:
    """Iterations finish in the order of their launches. Engine thread only.

    The blocks of a sequence that ends are given back once no running iteration contains it.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._running: deque[LaunchedGroups] = deque()
        self._num_finished = 0
        self._leaving: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._running)

    @property
    def next_number(self) -> int:
        """Of the next iteration to be launched; the first is 1."""
        return self._num_finished + len(self._running) + 1

    def has(self, batch: DecodeBatch) -> bool:
        """Whether an iteration of this lane runs."""
        return any(groups.batch is batch for groups in self._running)

    def has_drafts(self, batch: DecodeBatch) -> bool:
        """Whether one that runs has drafts."""
        return any(groups.batch is batch and groups.has_drafts for groups in self._running)

    def begin(self, groups: LaunchedGroups) -> None:
        """The next iteration is launched."""
        self._running.append(groups)

    def finish(self) -> LaunchedGroups:
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
