"""Carries blocks between the device and the host, beside the computation (PagedAttention 4.5; AdaptiveLLM 3.2)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from service.core.iteration_plan import Transfer
from service.core.iteration_result import FinishedTransfer
from service.runner.host_blocks import HostBlocks
from service.runner.kv_storage import KvStorage

_PROBE_BLOCKS = (1, 4, 16, 64)
_PROBE_ROUNDS = 5


_WORK_BYTES = 1 << 30
"""Device memory that is written before a copy that is timed: some tenths of a millisecond, in which all of it is
launched."""


class TransferTiming(NamedTuple):
    """Transfer of `num_blocks` blocks, one way. launch_s: what waiting for it costs the host besides the copy."""

    to_host: bool
    num_blocks: int
    seconds: float
    launch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """On a GPU, the events before and after the copies; else the seconds that they took."""

    transfer_id: int
    began: torch.cuda.Event | None
    ended: torch.cuda.Event | None
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.ended is None or bool(self.ended.query())

    def finished(self) -> FinishedTransfer:
        if self.began is None or self.ended is None:
            return FinishedTransfer(self.transfer_id, self.seconds)
        return FinishedTransfer(self.transfer_id, self.began.elapsed_time(self.ended) / 1000)


class KvTransfer:
    """The way between device and host blocks: on a GPU a stream of its own. Engine thread only.

    On a CPU the same calls copy at once.
    """

    def __init__(self, storage: KvStorage, host_blocks: HostBlocks) -> None:
        self._device_blocks = storage.blocks
        self._host_blocks = host_blocks
        self._stream = _new_stream(storage.blocks.device) if storage.blocks.is_cuda else None
        self._in_flight: list[_UnderWay] = []

    def start(self, transfer: Transfer) -> None:
        """Begin the copies: after everything that has been computed so far, and before nothing."""
        device_blocks = [self._device_blocks[index] for index in transfer.device_blocks]  # host time that is no copying
        if self._stream is None:
            started_s = time.perf_counter()
            self._copy(transfer, device_blocks)
            self._in_flight.append(_UnderWay(transfer.transfer_id, None, None, time.perf_counter() - started_s))
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device_blocks.device))
        with torch.cuda.stream(self._stream):
            began = self._stream.record_event(_new_event())
            self._copy(transfer, device_blocks)
            ended = self._stream.record_event(_new_event())
        self._in_flight.append(_UnderWay(transfer.transfer_id, began, ended))

    def take_finished(self, wait: bool) -> tuple[FinishedTransfer, ...]:
        """Transfers that have finished since the last call; with `wait`, at least one if any is under way."""
        if not self._in_flight:
            return ()
        if wait and self._in_flight[0].ended is not None:
            self._in_flight[0].ended.synchronize()
        done = [under_way for under_way in self._in_flight if under_way.is_done]
        self._in_flight = [under_way for under_way in self._in_flight if under_way not in done]
        return tuple(under_way.finished() for under_way in done)

    def measure(self) -> tuple[TransferTiming, ...]:
        """Timings of several numbers of blocks, each way. Before serving: it overwrites blocks."""
        most = min(len(self._host_blocks), len(self._device_blocks))
        sizes = sorted({min(count, most) for count in _PROBE_BLOCKS} - {0})
        return tuple(self._time(count, to_host=to_host) for count in sizes for to_host in (True, False))

    def _time(self, num_blocks: int, *, to_host: bool) -> TransferTiming:
        """As it runs in traffic: behind other work, so that all of it is launched before it begins."""
        blocks, best_s = tuple(range(num_blocks)), math.inf
        for _ in range(_PROBE_ROUNDS):
            self._occupy()
            self.start(Transfer(-1, to_host, blocks, blocks))
            (finished,) = self.take_finished(wait=True)
            best_s = min(best_s, finished.seconds or 0.0)
        return TransferTiming(to_host, num_blocks, best_s)

    def _occupy(self) -> None:
        if self._stream is not None:
            self._device_blocks[: _WORK_BYTES // self._device_blocks[0].nbytes].zero_()

    def _copy(self, transfer: Transfer, device_blocks: list[Tensor]) -> None:
        for block, host_block in zip(device_blocks, transfer.host_blocks, strict=True):
            if transfer.to_host:
                self._host_blocks.store(block, host_block)
            else:
                self._host_blocks.load(host_block, block)


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
