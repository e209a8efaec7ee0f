"""A decode in lockstep, with what its share of a plan is made of, all in one place (lockstep.py)."""

from __future__ import annotations

from service.core.iteration_plan import Sample
from service.core.iteration_result import INVALID_TOKEN_ID
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_table import BlockTable

BLOCKS_A_LOOK = 8
"""Full blocks of a decode that are offered to the prefix cache together. One by one each costs several times as much:
what a look touches has left the processor's caches since the last one (loadtest/LOG.md)."""

_FAILED = frozenset((INVALID_TOKEN_ID,))


class LockstepDecode:
    """table_start, block_ids: as in ScheduledSequence. place: in `scheduled`, while the members stay the same.

    Changed by Lockstep only, except for what the engine needs when it applies results: a drawn token must be examined
    if its position is `looked_at_from` or later (BLOCKS_A_LOOK blocks are full, it is the last one, or the decode may
    have ended), or if it is one of `watched_ids` (a stop, or a failed draw). Of any other token only the id is told.
    """

    __slots__ = (
        "block_ids",
        "client",
        "group",
        "is_member",
        "looked_at_from",
        "place",
        "request_id",
        "samples",
        "sampling",
        "sequence",
        "sequence_id",
        "table",
        "table_start",
        "token_ids",
        "watched_ids",
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
        self.place = 0
        self.request_id = group.request.request_id
        self.client = group.request.client
        self.watched_ids = self.sampling.stop_token_ids | _FAILED
        self.looked_at_from = 0
        self.is_member = True

    def leave(self) -> None:
        """It is a member no more. Tokens may still be under way, and the request may end before they arrive."""
        self.is_member = False
        self.looked_at_from = 0

    def looked_at(self, position: int, block_size: int) -> None:
        """The token at `position` has been examined. Next comes one that fills a block, another one for each of
        BLOCKS_A_LOOK decodes, or the last one. Every token is examined if the decode is no member, or if the request
        has several choices, which tokens must name.
        """
        if self.is_member and len(self.group.sequences) == 1:
            block = position // block_size + 1
            full = (block + (self.sequence_id - block) % BLOCKS_A_LOOK) * block_size
            self.looked_at_from = min(full, self.sequence.max_num_tokens - 1)
