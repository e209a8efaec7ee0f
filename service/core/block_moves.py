"""What an iteration does to whole blocks besides computing: copies, and transfers between device and host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.core.adapter import AdapterLoad
from service.core.training import Arena


class BlockCopy(NamedTuple):
    """Copy a block's keys and values of all layers, before the iteration writes (copy-on-write)."""

    source: int
    destination: int


class Transfer(NamedTuple):
    """Move blocks between device and host, beside the computation: device_blocks[i] <-> host_blocks[i].

    It starts after everything that earlier plans compute. Until the executor reports it finished, no plan writes its
    blocks on either side, nor reads the blocks that it fills. Blocks that are being swapped out may still be read, and
    even swapped out by a second transfer: sequences that share a prefix may be preempted one after the other.
    """

    transfer_id: int
    to_host: bool
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


class FinishedTransfer(NamedTuple):
    """A transfer whose copies are done.

    seconds: how long they took, counted from the end of the plan's transfers started before it; None if not measured.
    is_first: it was its plan's first and could start at once, so `seconds` includes the delay of its launch."""

    transfer_id: int
    seconds: float | None
    is_first: bool = True


def check_moves(
    copies: Sequence[BlockCopy],
    transfers: Sequence[Transfer],
    adapter_loads: Sequence[AdapterLoad],
    arena: Arena | None,
) -> None:
    """Raise AssertionError if moves of one plan conflict. arena: that of the plan's training share, if any."""
    copied = [copy.destination for copy in copies]
    destinations = set(copied)
    assert len(destinations) == len(copied), "a block is the destination of one copy"
    assert destinations.isdisjoint(copy.source for copy in copies), "copies do not chain"
    filled = [block_id for t in transfers if not t.to_host for block_id in t.device_blocks]
    leaving = {block_id for t in transfers if t.to_host for block_id in t.device_blocks}
    assert len(set(filled)) == len(filled), "a block is filled once"
    assert leaving.isdisjoint(filled), "a block that moves is not written"
    assert destinations.isdisjoint(leaving.union(filled)), "a block that moves is not written"
    loaded = [block_id for load in adapter_loads for block_id in load.block_ids]
    assert len(set(loaded)) == len(loaded), "an adapter's block is its own"
    assert destinations.union(leaving, filled).isdisjoint(loaded), "an adapter's block is its own"
    slots = [load.slot for load in adapter_loads]
    assert len(set(slots)) == len(slots), "a slot is filled once"
    if arena is not None:
        assert destinations.isdisjoint(arena.block_ids), "an arena is its training's own"
