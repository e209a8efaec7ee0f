"""A decode in lockstep, with what its share of a plan is made of, all in one place (lockstep.py)."""

from __future__ import annotations

from service.core.iteration_plan import Sample
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_table import BlockTable


class LockstepDecode:
    """table_start, block_ids: as in ScheduledSequence. Changed by Lockstep only."""

    __slots__ = (
        "block_ids",
        "group",
        "samples",
        "sampling",
        "sequence",
        "sequence_id",
        "table",
        "table_start",
        "token_ids",
    )

    def __init__(self, group: SequenceGroup, sequence: Sequence, table: BlockTable) -> None:
        self.group = group
        self.sequence = sequence
        self.sequence_id = sequence.sequence_id
        self.token_ids = sequence.token_ids
        self.sampling = group.request.sampling
        self.samples: tuple[Sample, ...] = sequence.draws
        self.table = table
        self.table_start = len(table.block_ids)
        self.block_ids: tuple[int, ...] = ()
