"""Host memory for the blocks of swapped sequences: stored as they are, or rounded to fp8 in half the memory of bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kernels.move_blocks import move_blocks
from service.runner.device_copies import to_device
from service.runner.kv_storage import KvLayout

_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
_SMALLEST = 1e-30
"""Least scale, because a vector of zeros has no largest element to divide by."""

_SMALL_BYTES, _SMALL_BYTES_ON_CPU = 512 << 10, 8 << 10
"""Smaller blocks move together: one takes less time to move than a copy of its own takes to begin. On one H200 a copy
takes 11.8 us to begin, and 48 GB/s cross the bus (loadtest/log/prediction.md). On a CPU a copy takes 3 us to begin, and
blocks that move together are copied twice."""

_MOVED_AT_ONCE = 8 << 20
"""Bytes moved by one launch. A CPU holds them twice meanwhile. On a GPU the launch lasts 0.2 ms, and a kernel that
needs whole multiprocessors waits no longer for it."""

_COMPRESSED_AT_ONCE = 2 << 20
"""Bytes rounded at once: one block of 16 tokens of Llama-8B. Meanwhile they take three times the memory, in fp32 and
rounded."""


Copy = Callable[[], object]
"""A prepared copy. Called on the stream that carries it out; it does not wait for the copy."""


class HostBlocks(Protocol):
    """Places for blocks on the host, 0 to len - 1, and copies of blocks to and from them.

    blocks: [B, *layout.shape] on the device, in the layout's dtype, contiguous. block_ids[i] <-> places[i]; all are
    distinct.
    """

    def __len__(self) -> int: ...

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        """What one block takes on the host."""
        ...

    def store(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        """From the device to the places."""
        ...

    def load(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        """From the places to the device: overwrites these blocks."""
        ...


class PlainHostBlocks:
    """Blocks stored as they are: what comes back is exactly what was swapped out.

    small_bytes: smaller blocks move together, others by a copy each. Default: whichever is faster.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, *, pinned: bool, small_bytes: int | None = None) -> None:
        self._blocks = _zeros((num_blocks, *layout.shape), layout.dtype, pinned=pinned)
        self._small_bytes = _small_bytes(pinned=pinned) if small_bytes is None else small_bytes

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        return layout.block_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def store(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        return _moves(blocks, block_ids, self._blocks, places, self._small_bytes)

    def load(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        return _moves(self._blocks, places, blocks, block_ids, self._small_bytes)


class Fp8HostBlocks:
    """Plain blocks stored in fp8. Each key and each value (of one token and head) becomes a scale (fp32: its largest
    element / 448) and e4m3 elements.

    Error: at most 1/16 of an element, or 1/1024 of the scale if that is more, before rounding to the layout's dtype. A
    NaN stays within its token: a block's cells without a token may hold anything.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, *, pinned: bool) -> None:
        self._elements = _zeros((num_blocks, *layout.shape), torch.uint8, pinned=pinned)
        self._scales = _zeros((num_blocks, *layout.shape[:-1], 1), torch.float32, pinned=pinned)
        self._small_bytes = _small_bytes(pinned=pinned)

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        num_elements = layout.block_bytes // layout.dtype.itemsize
        return num_elements + num_elements // layout.head_dim * torch.float32.itemsize

    def __len__(self) -> int:
        return len(self._elements)

    def store(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        pieces = _pieces(len(places), _COMPRESSED_AT_ONCE // _block_bytes(blocks))
        return [partial(self._store, blocks, block_ids[piece], places[piece]) for piece in pieces]

    def load(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> list[Copy]:
        pieces = _pieces(len(places), _COMPRESSED_AT_ONCE // _block_bytes(blocks))
        return [partial(self._load, blocks, block_ids[piece], places[piece]) for piece in pieces]

    def _store(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> None:
        exact = blocks.index_select(0, _ids_on(blocks.device, block_ids)).float()
        scales = exact.abs().amax(-1, keepdim=True).div_(_FP8_MAX).clamp_(min=_SMALLEST)
        elements = exact.div_(scales).to(_FP8).view(torch.uint8)
        for rounded, host in ((elements, self._elements), (scales, self._scales)):
            _run(_moves(rounded, range(len(places)), host, places, self._small_bytes))

    def _load(self, blocks: Tensor, block_ids: Sequence[int], places: Sequence[int]) -> None:
        elements, scales = (
            torch.empty((len(places), *host.shape[1:]), dtype=host.dtype, device=blocks.device)
            for host in (self._elements, self._scales)
        )
        for rounded, host in ((elements, self._elements), (scales, self._scales)):
            _run(_moves(host, places, rounded, range(len(places)), self._small_bytes))
        exact = elements.view(_FP8).float().mul_(scales)
        blocks.index_copy_(0, _ids_on(blocks.device, block_ids), exact.to(blocks.dtype))


def _moves(
    source: Tensor,
    sources: Sequence[int],
    destination: Tensor,
    destinations: Sequence[int],
    small_bytes: int,
) -> list[Copy]:
    """Small blocks move many at a time. Large ones move by a copy each, so that all of a GPU's multiprocessors compute
    meanwhile."""
    num_bytes = _block_bytes(source)
    if num_bytes >= small_bytes:
        pairs = zip(sources, destinations, strict=True)
        return [partial(destination[there].copy_, source[here], non_blocking=True) for here, there in pairs]
    pieces = _pieces(len(sources), _MOVED_AT_ONCE // num_bytes)
    return [partial(_move_together, source, sources[piece], destination, destinations[piece]) for piece in pieces]


def _move_together(source: Tensor, sources: Sequence[int], destination: Tensor, destinations: Sequence[int]) -> None:
    device = source.device if source.is_cuda else destination.device
    ids = {"sources": np.array(sources, dtype=np.int64), "destinations": np.array(destinations, dtype=np.int64)}
    there = to_device(ids, device)
    move_blocks(source, there["sources"], destination, there["destinations"])


def _small_bytes(*, pinned: bool) -> int:
    return _SMALL_BYTES if pinned else _SMALL_BYTES_ON_CPU


def _ids_on(device: torch.device, ids: Sequence[int]) -> Tensor:
    return to_device({"ids": np.array(ids, dtype=np.int64)}, device)["ids"]


def _pieces(num: int, most: int) -> Iterator[slice]:
    """Slices of 0 to num - 1, with `most` items each, or one if `most` is less."""
    most = max(1, most)
    return (slice(first, first + most) for first in range(0, num, most))


def _run(copies: list[Copy]) -> None:
    for copy in copies:
        copy()


def _block_bytes(blocks: Tensor) -> int:
    return blocks.shape[1:].numel() * blocks.element_size()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=pinned and shape[0] > 0)
