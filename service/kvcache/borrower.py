"""Blocks that are lent until somebody else needs them: to adapters that no request uses, and to a training."""

from __future__ import annotations

from typing import Protocol


class Borrower(Protocol):
    """Holds blocks that can be reclaimed at any time, which are therefore counted as available."""

    @property
    def num_idle_blocks(self) -> int:
        """How many of its blocks can be reclaimed."""
        ...

    def free_blocks(self, num_blocks: int) -> None:
        """Free some of its blocks, until the pool has `num_blocks` free ones or no more can be reclaimed."""
        ...
