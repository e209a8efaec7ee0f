"""A training's state in host memory, while requests wait for the device: by DMA, as fast as the link is.

A copy to pageable memory goes through a small buffer, at a tenth of the link's rate: for an 8B model's adapter of rank
16, 500 MB, that is a pause of a fifth of a second for everybody, and from pinned memory one of ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies of fp32 tensors [N] of one device, in one piece of memory; waits until they are there."""
    device = tensors[0].device
    copies = _rows(len(tensors), tensors[0].numel(), device)
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return copies


def reserve_host_copies(count: int, numel: int, device: torch.device) -> None:
    """So that the first ones of this many tensors [numel] do not wait for memory to be pinned, which takes much longer
    than the copy: torch keeps what was pinned once. Any thread."""
    if device.type == "cuda":
        _rows(count, numel, device)


def _rows(count: int, numel: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.empty(count, numel, dtype=torch.float32, pin_memory=device.type == "cuda").unbind(0)
