"""Copies blocks between device and host, beside the computation (PagedAttention 4.5; AdaptiveLLM 3.3).

A block is contiguous on either side, so a large one moves by one copy, without a kernel or a buffer between. Small ones
move many at a time by one launch (service/runner/host_blocks.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from service.core.block_moves import FinishedTransfer, Transfer
from service.runner.host_blocks import Copy, HostBlocks
from service.runner.kv_storage import KvStorage


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """On a GPU, the events before and after the copies; on a CPU, the seconds they took. The event after one transfer
    is the event before the next one that was started with it."""

    transfer_id: int
    is_first: bool
    began: torch.cuda.Event | None
    ended: torch.cuda.Event | None
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.ended is None or bool(self.ended.query())

    def finished(self) -> FinishedTransfer:
        if self.began is None or self.ended is None:
            return FinishedTransfer(self.transfer_id, self.seconds, self.is_first)
        return FinishedTransfer(self.transfer_id, self.began.elapsed_time(self.ended) / 1000, self.is_first)


class KvTransfer:
    """Transfers between device and host blocks; on a GPU on a stream of its own. Engine thread only.

    On a CPU the same calls copy at once. under_way: transfers that have not been reported as finished; others only look
    whether there are any.
    """

    def __init__(self, storage: KvStorage, host_blocks: HostBlocks) -> None:
        self._device_blocks = storage.blocks
        self._host_blocks = host_blocks
        self._stream = _new_stream(storage.blocks.device) if storage.blocks.is_cuda else None
        self.under_way: list[_UnderWay] = []

    def mark(self) -> torch.cuda.Event | None:
        """On a GPU, an event after all launched so far. None on a CPU, where all of it has been computed."""
        if self._stream is None:
            return None
        reached = torch.cuda.Event()
        reached.record(torch.cuda.current_stream(self._device_blocks.device))
        return reached

    def start(self, transfers: Sequence[Transfer], after: torch.cuda.Event | None = None) -> None:
        """Begin the copies, one transfer after another; no later launch waits for them. They wait for all that has been
        launched so far or, with `after` (a `mark`), only for what was launched before it."""
        after = after or self.mark()
        copies = [self._copies(transfer) for transfer in transfers]  # all prepared before the first begins
        if self._stream is None or after is None:
            for number, (transfer, of_one) in enumerate(zip(transfers, copies, strict=True)):
                started_s = time.perf_counter()
                for copy in of_one:
                    copy()
                seconds = time.perf_counter() - started_s
                self.under_way.append(_UnderWay(transfer.transfer_id, number == 0, None, None, seconds))
            return
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            waits_for_launch = after.query()
            began = self._stream.record_event(_new_event())
            for number, (transfer, of_one) in enumerate(zip(transfers, copies, strict=True)):
                for copy in of_one:
                    copy()
                ended = self._stream.record_event(_new_event())
                is_first = number == 0 and waits_for_launch
                self.under_way.append(_UnderWay(transfer.transfer_id, is_first, began, ended))
                began = ended

    def take_finished(self, wait: bool) -> tuple[FinishedTransfer, ...]:
        """Transfers that have finished since the last call; with `wait`, at least one if any is under way."""
        if wait and self.under_way and self.under_way[0].ended is not None:
            self.under_way[0].ended.synchronize()
        done = [transfer for transfer in self.under_way if transfer.is_done]
        self.under_way = [transfer for transfer in self.under_way if transfer not in done]
        return tuple(transfer.finished() for transfer in done)

    def abandon(self) -> None:
        """Wait until no copy runs any more, and report none of the transfers that were under way: their requests have
        ended."""
        self.under_way.clear()
        if self._stream is not None:
            with suppress(RuntimeError):  # a device error, which the caller already has
                self._stream.synchronize()

    def _copies(self, transfer: Transfer) -> list[Copy]:
        there = self._host_blocks.store if transfer.to_host else self._host_blocks.load
        return there(self._device_blocks, transfer.device_blocks, transfer.host_blocks)


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
