"""Batches in flight (ORCA, section 4.2, Algorithm 1): one for each stage of a model, and no request in two of them.

The running groups are divided into lanes, which take turns: an iteration computes the groups of one lane, and that
lane has its next one only once this has finished. So with P lanes at most P iterations are in flight, and all that a
decision must know of its groups is known. Where the model is in one piece there is one lane, whose iterations may
overlap (service/engine/engine.py). What an iteration that runs touches is not freed before it has finished.

Lanes are kept equal: a lane admits no more than its share, and before it is decided it gives groups away to one that
has fewer sequences, the last ones that were started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.decode_batch import DecodeBatch, DecodeMembers
from service.scheduler.history import History


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


class Lanes:
    """Engine thread only. Every running group is in the batch of one lane. running: all of them, in order of start.

    batch: of the lane that is being decided, or was last.
    """

    def __init__(
        self, blocks: BlockManager, num_lanes: int, history: History, versions: Iterator[int] | None = None
    ) -> None:
        of_all = versions or count(1)  # a version names the same decodes wherever it is read
        self._batches = [DecodeBatch(blocks, of_all, history) for _ in range(num_lanes)]
        self._turn = 0
        self.batch = self._batches[0]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[DecodeBatch]:
        return iter(self._batches)

    def turns(self, launched: LaunchedIterations, running: list[SequenceGroup]) -> Iterator[DecodeBatch]:
        """The lanes whose turn it may be, the one that has waited longest first; each is `batch` from then on. A single
        lane's turn it always is."""
        for offset in range(len(self)):
            batch = self._batches[(self._turn + offset) % len(self)]
            if len(self) > 1:
                if launched.has(batch):
                    continue
                self._give_away(batch, running)
            self.batch = batch
            yield batch

    def stop(self, group: SequenceGroup) -> None:
        """The group, perhaps one that runs, runs no more. What its sequences and it say is up to date from now on."""
        for batch in self._batches:
            batch.stop(group)

    def note_launch(self) -> None:
        """An iteration of `batch` is launched: the turn is the next one's."""
        self._turn = (self._batches.index(self.batch) + 1) % len(self)

    def share(self, most: int, num_waiting: int) -> int:
        """How many sequences a lane has if all have as many, with those of so many waiting groups; `most` at most. A
        single lane has all."""
        if len(self) == 1:
            return most
        num_seqs = sum(batch.num_seqs for batch in self._batches)
        return min(most, -(-(num_seqs + num_waiting) // len(self)))

    def dissolve(self, running: list[SequenceGroup]) -> None:
        """From now on every group is unbatched."""
        for batch in self._batches:
            batch.dissolve([group for group in running if batch.holds(group)])

    def write_tokens(self) -> None:
        """The tokens of all sequences are up to date from now on, but for ids that are not drawn yet."""
        for batch in self._batches:
            batch.write_tokens()

    def check_invariants(self, running: list[SequenceGroup]) -> None:
        """Raise AssertionError unless every group is in one lane, and each batch is in order."""
        held = [[group for group in running if batch.holds(group)] for batch in self._batches]
        assert sum(map(len, held)) == len(running), "every group is in one lane"
        for batch, of_lane in zip(self._batches, held, strict=True):
            batch.check_invariants(of_lane)

    def _give_away(self, batch: DecodeBatch, running: list[SequenceGroup]) -> None:
        """Its last groups, to where there are fewer sequences, as far as that makes the two more equal."""
        lightest = min(self._batches, key=lambda other: other.num_seqs)
        while batch.num_seqs - lightest.num_seqs >= 2:
            group = next(group for group in reversed(running) if batch.holds(group))
            if batch.num_seqs - lightest.num_seqs < 2 * len(group.live):
                return
            batch.stop(group)
            lightest.take_over(group, running)
            lightest = min(self._batches, key=lambda other: other.num_seqs)
