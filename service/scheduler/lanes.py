"""Batches in flight (ORCA, section 4.2, Algorithm 1): one for each stage of a model, and no request in two of them.

The running groups are divided into lanes, which take turns: an iteration computes the groups of one lane, and that
lane has its next one only once this has finished. So with P lanes at most P iterations are in flight, and all that a
decision must know of its groups is known. Where the model is in one piece there is one lane, whose iterations may
overlap (service/engine/engine.py).

Lanes are kept equal: a lane admits no more than its share, and before it is decided it gives groups away to one that
has fewer sequences, the last ones that were started.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.launched_iterations import LaunchedIterations


class Lanes:
    """Engine thread only. Every running group is in the batch of one lane. running: all of them, in order of start.

    batch: of the lane that is being decided, or was last.
    """

    def __init__(self, blocks: BlockManager, num_lanes: int, versions: Iterator[int] | None = None) -> None:
        versions = versions or count(1)  # of all lanes: a version names the same decodes wherever it is read
        self._batches = [DecodeBatch(blocks, versions) for _ in range(num_lanes)]
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
