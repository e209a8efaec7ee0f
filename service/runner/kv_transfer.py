"""Carries blocks between the device and the host, beside the computation (PagedAttention 4.5; AdaptiveLLM 3.2)."""

from __future__ import annotations

import time

import torch

from service.core.iteration_plan import Transfer
from service.runner.kv_storage import KvStorage

_PROBE_BLOCKS = 16
_PROBE_ROUNDS = 5


class KvTransfer:
    """Host blocks, pinned where the device is a GPU, and a stream of their own to reach them. Engine thread only.

    On a CPU the same calls copy at once.
    """

    def __init__(self, storage: KvStorage, num_host_blocks: int) -> None:
        self._device_blocks = storage.blocks
        is_cuda = storage.blocks.is_cuda
        shape = (num_host_blocks, *storage.blocks.shape[1:])
        self._host_blocks = torch.zeros(shape, dtype=storage.blocks.dtype, pin_memory=is_cuda and num_host_blocks > 0)
        self._stream = _new_stream(storage.blocks.device) if is_cuda else None
        self._in_flight: list[tuple[int, torch.cuda.Event | None]] = []

    def start(self, transfer: Transfer) -> None:
        """Begin the copies: after everything that has been computed so far, and before nothing."""
        if self._stream is None:
            self._copy(transfer)
            self._in_flight.append((transfer.transfer_id, None))
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device_blocks.device))
        with torch.cuda.stream(self._stream):
            self._copy(transfer)
            event = self._stream.record_event()
        self._in_flight.append((transfer.transfer_id, event))

    def take_finished(self, wait: bool) -> tuple[int, ...]:
        """Ids of transfers that have finished since the last call; with `wait`, at least one if any is under way."""
        if wait and self._in_flight and self._in_flight[0][1] is not None:
            self._in_flight[0][1].synchronize()
        finished = tuple(i for i, event in self._in_flight if event is None or _has_happened(event))
        self._in_flight = [(i, event) for i, event in self._in_flight if i not in finished]
        return finished

    def measure(self) -> tuple[float, float]:
        """Bytes a second to the host and back, in pieces of one block. Before serving: it overwrites blocks."""
        count = min(_PROBE_BLOCKS, len(self._host_blocks), len(self._device_blocks))
        blocks = tuple(range(count))
        num_bytes = count * self._device_blocks[0].numel() * self._device_blocks.element_size()
        to_host_s = self._best_seconds(Transfer(-1, True, blocks, blocks))
        to_device_s = self._best_seconds(Transfer(-1, False, blocks, blocks))
        return num_bytes / to_host_s, num_bytes / to_device_s

    def _best_seconds(self, transfer: Transfer) -> float:
        best_s = float("inf")
        for _ in range(_PROBE_ROUNDS):
            started_s = time.perf_counter()
            self.start(transfer)
            self.take_finished(wait=True)
            best_s = min(best_s, time.perf_counter() - started_s)
        return best_s

    def _copy(self, transfer: Transfer) -> None:
        for device_block, host_block in zip(transfer.device_blocks, transfer.host_blocks, strict=True):
            device, host = self._device_blocks[device_block], self._host_blocks[host_block]
            target, source = (host, device) if transfer.to_host else (device, host)
            target.copy_(source, non_blocking=True)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _has_happened(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped
