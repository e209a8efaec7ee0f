"""Tensor parallelism over process groups of torch.distributed, which somebody else has made: NCCL's on GPUs, gloo's on
CPUs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class GroupParallel:
    """A TensorParallel.

    On CPUs sums are made in fp32 in the order of ranks and rounded once; on GPUs they are NCCL's.

    host_group: of the same ranks, for what is exchanged on the host; needed beside a group of NCCL's.
    """

    def __init__(self, group: ProcessGroup, host_group: ProcessGroup | None = None) -> None:
        self._group = group
        self._host_group = host_group or group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            x = x.contiguous()
            dist.all_reduce(x, group=self._group)
            return x
        return sum_in_order(self.all_gather(x))

    def all_gather(self, x: Tensor) -> Tensor:
        gathered = x.new_empty(self.size, *x.shape)
        if x.numel():
            # As bytes: gloo does not know every dtype.
            as_bytes = x.contiguous().view(-1).view(torch.uint8)
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


def sum_in_order(parts: Tensor) -> Tensor:
    """parts [size, ...] -> their sum, in fp32 in this order, rounded once to their dtype."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts.dtype)
