"""Which way ranks sum, by how many they are and of how many bytes: as `loadtest.bench.all_reduce` measures them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Way(Enum):
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"
    PUSHED_ONE_SHOT = "pushed one-shot"
    PUSHED_TWO_SHOT = "pushed two-shot"


WAYS: Final[dict[int, tuple[tuple[int, Way], ...]]] = {
    2: ((1 << 22, Way.ONE_SHOT), (1 << 23, Way.TWO_SHOT)),
    4: ((1 << 18, Way.ONE_SHOT), (1 << 23, Way.TWO_SHOT)),
}
"""By ranks: up to so many bytes of a rank's x this way, above the last NCCL. More ranks than are here go by the most.
On two H200, rows of 4096 in bf16: one-shot 27 us at 512 rows, as two-shot; two-shot 44 us at 1024 and NCCL 51; 90 and
86 at 2048. Of more ranks each reads more one-shot."""

CAPACITY_BYTES: Final = (1 << 25) + (1 << 20)
"""Of the memory that they sum in: what a way takes at most, and some rows for the last of each rank."""


def way_of(num_ranks: int, num_bytes: int) -> Way | None:
    """None: NCCL."""
    at_least = min((ranks for ranks in WAYS if ranks >= num_ranks), default=max(WAYS))
    return next((way for limit, way in WAYS[at_least] if num_bytes <= limit), None)
