"""How many CPU threads a training uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LEAST_MULTIPLICATIONS = 1e8
"""Multiplications in a product of the stream with a square weight, about three milliseconds on one core. That is a time
slice of the operating system: if one thread of a team must wait for its core, the whole team waits. Much smaller
products are slowest when they are divided: next to two busy processes on two cores, width 256 with 512 tokens took 100
and 82 s on two threads, with four times the CPU time, and 48 s on one; on idle cores 10.2 and 15.5 s."""


def is_one_threads_work(num_tokens: int, width: int) -> bool:
    """Whether a micro-batch of this size should use one thread. Depends on nothing else, since another number of
    threads may give other bits, and a job that resumes elsewhere must end with the same ones."""
    return num_tokens * width**2 < _LEAST_MULTIPLICATIONS


@contextmanager
def threads_for(num_tokens: int, width: int, device: torch.device) -> Iterator[None]:
    """In this context, torch's operations and other loops use one thread if the work is too small for more.

    Only the calling thread may compute on this device meanwhile.
    """
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1 or not is_one_threads_work(num_tokens, width):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
