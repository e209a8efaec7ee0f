"""Whether the memory for the next waiting request is there, so that it may start. See also memory_forecast.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.core.request import Request
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager, Fit
from service.scheduler.memory_need import num_blocks_alone, num_blocks_to_start


class Admission(Protocol):
    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        """Whether there is room now for all tokens that the group has, the first of them being in the cached blocks
        `prefix`, and for its adapter unless a running group uses it. num_promised: blocks that prompts of running
        groups still need and that are not allocated yet (`num_blocks_to_come`).

        Changes nothing.
        """
        ...


class OnDemandAdmission:
    """Requires room for the tokens that exist now, not for those to be generated (PagedAttention, section 4.3).

    A watermark of blocks is kept free for the growth of running sequences, so that an admission does not cause a
    preemption in the next iteration. If nothing runs, nothing can grow, and the watermark is waived: a request that
    passed `fits_ever` can then always start. That is why admission never deadlocks.
    """

    def __init__(self, watermark_blocks: int) -> None:
        self._watermark_blocks = watermark_blocks

    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        keep_free = self._watermark_blocks if running else 0
        return blocks.fit(num_blocks_to_start(group, prefix, blocks), keep_free + num_promised)


def fits_ever(request: Request, blocks: BlockManager, max_num_seqs: int) -> bool:
    """Whether the request, with its adapter, could run to its end if it had the whole cache and all sequences."""
    has_seats = request.sampling.num_sequences <= max_num_seqs
    return has_seats and blocks.fit(num_blocks_alone(request, blocks)) is not Fit.NEVER
