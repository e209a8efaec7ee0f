"""The host's memory: large tensors in it, and what the process does with memory that was freed."""

from __future__ import annotations

import ctypes
import math
import mmap

import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_INT = 2**30


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU, at least one, whose memory the system provides only where it is written.

    In huge pages where the system has them: blocks lie far apart, and with small pages each access to a block misses
    the TLB. Measured on a 2-core virtual machine, 135M model, one sequence, bf16, against torch's zeros(): a step 23.8
    -> 23.2 ms, loading 4.9 -> 1.3 s, resident memory 3.6 -> 0.7 GB with a cache of 4 GiB.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes).view(dtype).view(shape)


def keep_freed_memory() -> bool:
    """Let the process keep memory that it freed instead of returning it to the system. Returns whether the C library
    can do so (glibc).

    The activations of a prompt are some megabytes each, allocated and freed in every layer. If they are returned, each
    of their pages faults again. Measured on 2 cores, 135M model, 16 prompts of 128 tokens over HTTP: time to first
    token 1.6 s instead of 2.0. It costs the largest iteration's activations as resident memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))
