"""Pipeline stages over existing process groups of torch.distributed: NCCL's send and receive between GPUs, gloo's on
CPUs."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work


class GroupStage:
    """A PipelineStage. group: all ranks. before, behind: the neighbours' ranks in it. column: for exchanges on the
    host: the ranks with this number within each stage, the last stage's first."""

    def __init__(
        self, index: int, size: int, before: int, behind: int, group: ProcessGroup, column: ProcessGroup
    ) -> None:
        self.index = index
        self.size = size
        self._before = before
        self._behind = behind
        self._group = group
        self._column = column
        self._sending: deque[tuple[Work, Tensor]] = deque()  # the tensors must live until they are sent

    def receive(self, into: Tensor) -> None:
        dist.recv(into, self._before, group=self._group)

    def send(self, hidden: Tensor) -> None:
        self._hand(hidden, self._behind)

    def receive_back(self, into: Tensor) -> None:
        dist.recv(into, self._behind, group=self._group)

    def send_back(self, gradient: Tensor) -> None:
        self._hand(gradient, self._before)

    def tell_last(self, values: Tensor) -> None:
        dist.send(values, group=self._column, group_dst=0)

    def hear(self, index: int, into: Tensor) -> None:
        dist.recv(into, group=self._column, group_src=(index + 1) % self.size)

    def _hand(self, hidden: Tensor, rank: int) -> None:
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        hidden = hidden.contiguous()
        work = dist.isend(hidden, rank, group=self._group)
        assert work is not None, "this rank is in the group"
        self._sending.append((work, hidden))

    def least(self, number: int) -> int:
        value = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._column)
        return int(value)

    def of_last(self, text: str) -> str:
        told = [text]
        dist.broadcast_object_list(told, group=self._column, group_src=0)
        return told[0]
