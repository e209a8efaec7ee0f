"""Several batches in flight (ORCA, section 4.2, Algorithm 1): one per pipeline stage, and no request in two of them.

The running groups are divided into lanes, which take turns: an iteration computes the groups of one lane, and the
lane's next iteration is decided only after that one has finished. So with P lanes at most P iterations are in flight,
and every decision knows all results of its own groups. A model without pipeline stages has one lane, whose iterations
may overlap (service/engine/engine.py). Blocks that an iteration in flight uses are not freed before it has finished.

Lanes are kept balanced: a lane admits at most its share of sequences. Before a lane is decided, it moves its most
recently started groups to the lane with the fewest sequences.
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
    """The groups of an iteration in plan order: the decode batch, if any, then one group per item of `scheduled`.

    batch: that of the iteration's lane; None for an iteration of a training. has_drafts: some items are drafts, so the
    lane's next iteration depends on how many of them turn out right."""

    decodes: DecodeMembers | None
    scheduled: list[SequenceGroup]
    batch: DecodeBatch | None = None
    has_drafts: bool = False

    def all(self) -> list[SequenceGroup]:
        """All groups, in plan order."""
        return self.scheduled if self.decodes is None else [*self.decodes.groups, *self.scheduled]


class LaunchedIterations:
    """The iterations in flight, which finish in launch order. Engine thread only.

    The blocks of an ended sequence are freed once no iteration in flight contains it.
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
        """The number that the next launched iteration gets; the first one is 1."""
        return self._num_finished + len(self._running) + 1

    def has(self, batch: DecodeBatch) -> bool:
        """Whether an iteration of this lane is in flight."""
        return any(groups.batch is batch for groups in self._running)

    def has_drafts(self, batch: DecodeBatch) -> bool:
        """Whether an iteration of this lane with drafts is in flight."""
        return any(groups.batch is batch and groups.has_drafts for groups in self._running)

    def begin(self, groups: LaunchedGroups) -> None:
        """Record the launch of an iteration."""
        self._running.append(groups)

    def finish(self) -> LaunchedGroups:
        """The oldest iteration has ended: free what waited for it, and return its groups."""
        self._num_finished += 1
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self.free(sequence)
        return self._running.popleft()

    def free(self, sequence: Sequence) -> None:
        """Free the sequence's blocks: now, or as soon as no iteration in flight contains it."""
        if sequence.last_iteration > self._num_finished:
            self._leaving.append(sequence)
        elif self._blocks.holds(sequence.sequence_id):
            self._blocks.free(sequence.sequence_id)


class Lanes:
    """Every running group is in the batch of exactly one lane. Engine thread only. running: all, in order of start.

    batch: that of the lane being decided, or decided last."""

    def __init__(
        self, blocks: BlockManager, num_lanes: int, history: History, versions: Iterator[int] | None = None
    ) -> None:
        of_all = versions or count(1)  # shared, so that a version means the same decodes in all lanes
        self._batches = [DecodeBatch(blocks, of_all, history) for _ in range(num_lanes)]
        self._turn = 0
        self.batch = self._batches[0]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[DecodeBatch]:
        return iter(self._batches)

    def turns(self, launched: LaunchedIterations, running: list[SequenceGroup]) -> Iterator[DecodeBatch]:
        """The lanes that may be decided now, longest-waiting first. The yielded lane becomes `batch`. Lanes with an
        iteration in flight are skipped, unless there is only one lane."""
        for offset in range(len(self)):
            batch = self._batches[(self._turn + offset) % len(self)]
            if len(self) > 1:
                if launched.has(batch):
                    continue
                self._give_away(batch, running)
            self.batch = batch
            yield batch

    def stop(self, group: SequenceGroup) -> None:
        """The group stops running (if it runs). From now on the token counts of it and its sequences are up to date."""
        for batch in self._batches:
            batch.stop(group)

    def note_launch(self) -> None:
        """An iteration of `batch` was launched: the next lane's turn comes."""
        self._turn = (self._batches.index(self.batch) + 1) % len(self)

    def share(self, most: int, num_waiting: int) -> int:
        """How many sequences a lane may have: an equal share of those running and `num_waiting` more, and at most
        `most`. A single lane: `most`."""
        if len(self) == 1:
            return most
        num_seqs = sum(batch.num_seqs for batch in self._batches)
        return min(most, -(-(num_seqs + num_waiting) // len(self)))

    def dissolve(self, running: list[SequenceGroup]) -> None:
        """Move all groups out of the decode batches: every group is unbatched then."""
        for batch in self._batches:
            batch.dissolve([group for group in running if batch.holds(group)])

    def write_tokens(self) -> None:
        """Bring the token ids of all sequences up to date, except for ids that are not drawn yet."""
        for batch in self._batches:
            batch.write_tokens()

    def _give_away(self, batch: DecodeBatch, running: list[SequenceGroup]) -> None:
        """Move this lane's last-started groups to the lane with the fewest sequences, as long as that balances them."""
        lightest = min(self._batches, key=lambda other: other.num_seqs)
        while batch.num_seqs - lightest.num_seqs >= 2:
            group = next(group for group in reversed(running) if batch.holds(group))
            if batch.num_seqs - lightest.num_seqs < 2 * len(group.live):
                return
            batch.stop(group)
            lightest.take_over(group, running)
            lightest = min(self._batches, key=lambda other: other.num_seqs)
