"""A decode in lockstep, with what its share of a plan is made of, all in one place (lockstep.py)."""

from __future__ import annotations

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence
from service.core.iteration_result import INVALID_TOKEN_ID
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_table import BlockTable

_FAILED = frozenset((INVALID_TOKEN_ID,))


class LockstepDecode:
    """number: grows with every decode that joins. first: its share of step 0, had it been a member then; of step s it
    is s tokens further. table_start, block_ids: as in ScheduledSequence. num_told: its tokens when it joined, which
    Lockstep need not count for its group.

    Changed by Lockstep only. Of most tokens only the id is told. A drawn token must be looked at if it is the last one,
    or if it is one of `watched_ids` (a stop, or a failed draw).
    """

    __slots__ = (
        "block_ids",
        "client",
        "first",
        "group",
        "is_member",
        "num_told",
        "number",
        "request_id",
        "sequence",
        "sequence_id",
        "table",
        "table_start",
        "token_ids",
        "watched_ids",
    )

    def __init__(self, group: SequenceGroup, sequence: Sequence, table: BlockTable, number: int, step: int) -> None:
        """step: the next one, in which it is a member for the first time."""
        request = group.request
        self.number = number
        self.group = group
        self.sequence = sequence
        self.sequence_id = sequence.sequence_id
        self.token_ids = sequence.token_ids
        self.num_told = len(sequence.token_ids)
        self.table = table
        self.table_start = len(table.block_ids)
        self.block_ids: tuple[int, ...] = ()
        self.request_id = request.request_id
        self.client = request.client
        self.watched_ids = request.sampling.stop_token_ids | _FAILED
        self.is_member = True
        self.first = ScheduledSequence(
            sequence.sequence_id,
            (PENDING_TOKEN_ID,),
            len(sequence.token_ids) - 1 - step,
            self.table_start,
            (),
            request.sampling,
            sequence.draws,
        )
