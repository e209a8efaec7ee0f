"""Tensor parallelism over existing process groups of torch.distributed: NCCL on GPUs, gloo on CPUs. If the GPUs of a
host can address each other's memory, Headrace's own kernels do the all-reduces."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.mail import MAX_NORMED_SIZE
from kernels.one_shot_all_gather import one_shot_all_gather
from kernels.one_shot_all_reduce import (
    one_shot_add_rms_norm,
    one_shot_all_reduce,
    one_shot_all_reduce_reference,
)
from kernels.rms_norm import add_rms_norm
from kernels.sum_ways import CAPACITY_BYTES, Way, way_of
from kernels.symmetric_memory import INPUT_BYTES, SymmetricMemory, can_exchange
from kernels.two_shot_all_reduce import two_shot_add_rms_norm, two_shot_all_reduce
from service.layers.exchange_timer import ExchangeTimer

logger = logging.getLogger("headrace")

_SUMS = {Way.ONE_SHOT: one_shot_all_reduce, Way.TWO_SHOT: two_shot_all_reduce}
_NORMED_SUMS = {Way.ONE_SHOT: one_shot_add_rms_norm, Way.TWO_SHOT: two_shot_add_rms_norm}


class GroupParallel:
    """A TensorParallel.

    Sums are computed in fp32 in rank order and rounded once; NCCL's sums have an order of their own.

    host_group: the same ranks, for exchanges on the host; needed beside an NCCL group. memory: what these ranks can all
    address; None: NCCL does the all-reduces. With it, all calls of a rank must be on one stream. note_exchange: as of
    ExchangeTimer.
    """

    def __init__(
        self,
        group: ProcessGroup,
        host_group: ProcessGroup | None = None,
        memory: SymmetricMemory | None = None,
        note_exchange: Callable[[int], None] = lambda nanoseconds: None,
    ) -> None:
        self._group = group
        self._host_group = host_group or group
        self._memory = memory
        self._timer = ExchangeTimer(note_exchange)
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return one_shot_all_reduce_reference(self.all_gather(x))
        x, way = x.contiguous(), self._way(x)
        with self._timer.timed(x):
            if way is None or self._memory is None:
                dist.all_reduce(x, group=self._group)
                return x
            return _SUMS[way](x, self._memory)

    def all_reduce_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        way = self._way(x) if x.shape[1] <= MAX_NORMED_SIZE and weight.dtype is x.dtype else None
        if way is None or self._memory is None:
            return add_rms_norm(self.all_reduce(x), residual, weight, eps)
        with self._timer.timed(x):
            return _NORMED_SUMS[way](x.contiguous(), residual, weight, eps, self._memory)

    def _way(self, x: Tensor) -> Way | None:
        return way_of(self.size, x.nbytes) if x.is_cuda and self._memory is not None else None

    def all_gather(self, x: Tensor) -> Tensor:
        if self._memory is not None and x.is_cuda and x.nbytes % 4 == 0 and x.nbytes <= INPUT_BYTES:
            x = x.contiguous()
            with self._timer.timed(x):
                return one_shot_all_gather(x if x.data_ptr() % 16 == 0 else x.clone(), self._memory)
        gathered = x.new_empty(self.size, *x.shape)
        if x.numel():
            # As bytes: gloo does not know every dtype.
            as_bytes = x.contiguous().view(-1).view(torch.uint8)
            with self._timer.timed(x):
                dist.all_gather_into_tensor(gathered.view(-1).view(torch.uint8), as_bytes, group=self._group)
        return gathered

    def least(self, number: int) -> int:
        value = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._host_group)
        return int(value)

    def of_first(self, text: str) -> str:
        encoded = text.encode() if self.rank == 0 else b""
        num_bytes = torch.tensor([len(encoded)], dtype=torch.int64)
        dist.broadcast(num_bytes, group=self._host_group, group_src=0)
        if not num_bytes:
            return ""
        values = torch.zeros(int(num_bytes), dtype=torch.uint8)
        if encoded:
            values.copy_(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
        dist.broadcast(values, group=self._host_group, group_src=0)
        return bytes(values.tolist()).decode()


def memory_of_gpus(group: ProcessGroup, host_group: ProcessGroup, device: torch.device) -> SymmetricMemory | None:
    """For a GroupParallel whose ranks each have one GPU of the same host, in rank order; None if the GPUs cannot
    address each other's memory. All ranks must call it."""
    ranks = GroupParallel(group, host_group)
    first = device.index - ranks.rank
    peers = [first + rank for rank in range(ranks.size) if rank != ranks.rank]
    # All ranks must agree before any begins: one that fails alone would leave the others waiting.
    if not ranks.least(int(can_exchange(device, peers))):
        logger.warning("not all GPUs can address each other's memory, so NCCL does the all-reduces")
        return None
    memory: SymmetricMemory | None = None
    try:
        memory = SymmetricMemory.of_group(group, CAPACITY_BYTES, device)
    except RuntimeError as fault:
        logger.warning("GPUs cannot address each other's memory, so NCCL does the all-reduces: %s", fault)
    return memory if ranks.least(int(memory is not None)) else None
