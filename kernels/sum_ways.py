"""Which way ranks sum, by how many they are and of how many bytes."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Way(Enum):
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"


_ANY: Final = 1 << 62

WAYS: Final[dict[int, tuple[tuple[int, Way], ...]]] = {
    2: ((_ANY, Way.ONE_SHOT),),
    4: ((1 << 19, Way.ONE_SHOT), (1 << 25, Way.TWO_SHOT)),
    8: ((1 << 17, Way.ONE_SHOT), (1 << 25, Way.TWO_SHOT)),
}
"""By ranks: up to so many bytes of a rank's x this way, above the last by NCCL. Of a number of ranks that is not here
those of the next one, or the last, hold.

Two ranks move as much either way. On two H200 one-shot with norm takes 3 us for one row and 5, 10, 29 and 104 for 64,
256, 1024 and 4096 rows of 4096 in bf16, two-shot 2 us more up to 128 rows, and NCCL without the norm 12, 14, 34, 51 and
148. Of more ranks it is reckoned, not measured: one-shot at 3 us and two-shot at 5, and their bytes at 330 GB/s."""

CAPACITY_BYTES: Final = 1 << 25
"""Of half the mail. More rows take several launches."""


def way_of(num_ranks: int, num_bytes: int) -> Way | None:
    """None: NCCL."""
    known = min((ranks for ranks in WAYS if ranks >= num_ranks), default=max(WAYS))
    return next((way for limit, way in WAYS[known] if num_bytes <= limit), None)
