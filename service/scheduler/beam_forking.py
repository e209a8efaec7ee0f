"""Beams that go on from each other: their blocks are shared, then copied on write (PagedAttention, section 4.4)."""

from __future__ import annotations

from service.core.sequence import Sequence
from service.kvcache.block_manager import BlockManager


def continue_beams(beams: list[Sequence], parents: list[int], token_ids: list[int], blocks: BlockManager) -> None:
    """Beam i becomes what beam parents[i] was before the call, and then token_ids[i]. All are equally long."""
    pairs = list(zip(beams, [beams[parent] for parent in parents], strict=True))
    blocks.refork({beam.sequence_id: parent.sequence_id for beam, parent in pairs if beam is not parent})
    grown = [[*parent.token_ids, token_id] for (_, parent), token_id in zip(pairs, token_ids, strict=True)]
    notes = [
        (parent.block_digests.copy(), parent.num_cached_blocks, parent.num_computed_tokens, parent.recompute_until)
        for _, parent in pairs
    ]
    for beam, ids, (digests, num_cached, num_computed, recompute_until) in zip(beams, grown, notes, strict=True):
        beam.token_ids = ids
        beam.block_digests = digests
        beam.num_cached_blocks = num_cached
        beam.num_computed_tokens = num_computed
        beam.recompute_until = recompute_until
