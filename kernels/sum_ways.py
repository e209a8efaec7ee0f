"""How ranks sum, depending on how many ranks and bytes there are."""

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
"""Number of ranks -> ((most bytes of a rank's x, how to sum), ...); above the last limit NCCL sums. A number of ranks
that is missing uses the next larger entry, or the last.

With two ranks both ways move the same number of bytes. On two H200 one-shot with the norm takes 3 us for one row, and
5, 10, 29 and 104 for 64, 256, 1024 and 4096 rows of 4096 in bf16; two-shot takes 2 us more up to 128 rows; NCCL without
the norm takes 12, 14, 34, 51 and 148. On four H200, with the norm, one-shot takes 5, 10 and 14 us for 1, 64 and 128
rows, two-shot 10, 13, 14, and 18, 45 and 153 for 256, 1024 and 4096; NCCL and a norm 12, 16, 20, 30, 67 and 206. For 8
ranks the limits are estimated, not measured: one-shot at 3 us and two-shot at 5, and their bytes at 330 GB/s.
"""

CAPACITY_BYTES: Final = 1 << 25
"""Bytes of half the mail buffer. More rows take several launches."""


def way_of(num_ranks: int, num_bytes: int) -> Way | None:
    """None: NCCL."""
    known = min((ranks for ranks in WAYS if ranks >= num_ranks), default=max(WAYS))
    return next((way for limit, way in WAYS[known] if num_bytes <= limit), None)
