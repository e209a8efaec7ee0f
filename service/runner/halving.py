"""What does not fit the device's memory in one go is computed in halves, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import torch

logger = logging.getLogger(__name__)

T = TypeVar("T")


def in_halves(
    num: int, what: str, compute: Callable[[int, int], T], *, at_once: int | None = None, may_cut: bool = True
) -> list[T]:
    """What `compute` gives for (0, num), or, where memory runs out, for its halves from the first to the last, halved
    again where they do not fit either. what: of which there are `num`, for the log. at_once: pieces of so many from the
    beginning.

    Raises OutOfMemoryError if there is none for a single one. Nothing may depend on the cut. may_cut: False where other
    ranks compute it too: none may decide by itself to go another way.
    """
    size = at_once or num
    waiting, computed = deque((first, min(first + size, num)) for first in range(0, num, size)), list[T]()
    while waiting:
        first, stop = waiting.popleft()
        try:
            computed.append(compute(first, stop))
            continue
        except torch.OutOfMemoryError:
            if stop - first == 1 or not may_cut:
                raise
        # Not in the `except`, which holds what the failed attempt has allocated.
        logger.warning("no memory for %d %s at once: they are computed in parts", stop - first, what)
        torch.cuda.empty_cache()
        middle = (first + stop) // 2
        waiting.extendleft(((middle, stop), (first, middle)))
    return computed
