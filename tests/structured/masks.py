"""Reading masks, as an executor does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.grammar import TokenMasks


def allowed_ids(bits: Sequence[int]) -> list[int]:
    """Ids that one row of a mask allows."""
    row = np.ascontiguousarray(bits, np.int32).view(np.uint8)
    return [int(token_id) for token_id in np.nonzero(np.unpackbits(row, bitorder="little"))[0]]


class FixedMasks:
    """TokenMasks that allow what they are told."""

    def __init__(self, rows: Sequence[int], allowed: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.rows = rows
        self._bits = np.zeros((len(allowed), -(-vocab_size // 32)), np.uint32)
        for row, token_ids in enumerate(allowed):
            for token_id in token_ids:
                self._bits[row, token_id // 32] |= np.uint32(1 << token_id % 32)

    def wait(self) -> memoryview:
        return self._bits.view(np.int32).data


def nearest_allowed(token_ids: Sequence[int], masks: TokenMasks) -> list[int]:
    """Each draw, or where its mask forbids it the next id that the mask allows, around the end of the vocabulary."""
    bits = np.asarray(masks.wait())
    drawn = []
    for token_id, row in zip(token_ids, masks.rows, strict=True):
        allowed = allowed_ids(bits[row]) if row >= 0 else [token_id]
        drawn.append(next((id_ for id_ in allowed if id_ >= token_id), allowed[0]))
    return drawn
