"""A training's state in host memory, while requests wait for the device: by DMA, as fast as the link is.

A copy to pageable memory goes through a small buffer, at a tenth of the link's rate: for an 8B model's adapter of rank
16, 500 MB, that is a pause of a fifth of a second for everybody, and from pinned memory one of ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_copies(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Copies of fp32 tensors [N], in one piece of memory; waits until they are there. tensors: on the device, or on the
    host, where the device may still be writing them."""
    copies = host_rows(len(tensors), tensors[0].numel(), device)
    pairs = list(zip(copies, tensors, strict=True))
    for copy, tensor in pairs:
        if tensor.is_cuda:
            copy.copy_(tensor, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    for copy, tensor in pairs:
        if not tensor.is_cuda:
            copy.copy_(tensor)
    return copies


def reserve_host_copies(count: int, numel: int, device: torch.device) -> None:
    """So that the first ones of this many tensors [numel] do not wait for memory to be pinned, which takes much longer
    than the copy: torch keeps what was pinned once. Any thread."""
    if device.type == "cuda":
        host_rows(count, numel, device)


def host_rows(count: int, numel: int, device: torch.device) -> tuple[Tensor, ...]:
    """Tensors [numel] for such copies; their values are undefined."""
    return torch.empty(count, numel, dtype=torch.float32, pin_memory=device.type == "cuda").unbind(0)
