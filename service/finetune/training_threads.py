"""How many of a CPU's cores a training computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LEAST_MULTIPLICATIONS = 1e8
"""Of a product of the stream with a square weight, about three milliseconds of one core. That is how long the system
lets others run when one of a team's threads has to wait for its core, and the team waits with it. What is much smaller
takes longest when it is divided: beside two busy processes on two cores, a width of 256 with 512 tokens took 100 and
82 s on two threads, with four times the CPU time, and 48 s on one; on idle cores 10.2 and 15.5 s."""


def is_one_threads_work(num_tokens: int, width: int) -> bool:
    """Of a micro-batch of so many tokens of a model of this width. It depends on nothing else: another number of
    threads may give other bits, and a job that goes on elsewhere ends with the same."""
    return num_tokens * width**2 < _LEAST_MULTIPLICATIONS


@contextmanager
def threads_for(num_tokens: int, width: int, device: torch.device) -> Iterator[None]:
    """Meanwhile torch's operations, and the loops beside them, have one thread if the work is too small for more.

    The thread that calls computes; nobody else may, on this device.
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
