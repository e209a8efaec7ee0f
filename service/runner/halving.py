"""Work that does not fit into the device's memory in one go is computed in halves, one after the other."""

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
    """The results of `compute` over (0, num) or, where memory runs out, over its halves in order, halved again if they
    do not fit either. what: what is counted, for the log. at_once: begin with pieces of this size.

    Raises OutOfMemoryError if even one item does not fit. Results must not depend on the cut. may_cut: False where
    other ranks compute the same, because a rank must not change its sequence of exchanges alone.
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
        # Outside the `except`, which keeps the failed attempt's tensors alive.
        logger.warning("out of memory for %d %s at once: computing them in parts", stop - first, what)
        torch.cuda.empty_cache()
        middle = (first + stop) // 2
        waiting.extendleft(((middle, stop), (first, middle)))
    return computed
