"""On a GPU: pinned memory for what an iteration sends to the device, and for the ids that come back; how long it took.

A copy from or to pinned memory runs while the host computes. To allocate such memory in each iteration, and events,
cost more than to use them (loadtest/LOG.md). So iterations use it in turns: one takes over what another has left whose
ids have arrived. By then all of that one's copies have run, whatever the caller does: they stand before the ids in the
device's stream. Other memory is fresh, and torch hands it out again only after the copies that used it.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

_FIRST_NUM_BYTES, _FIRST_NUM_IDS = 1 << 18, 1 << 11
"""In which nearly every iteration has room."""


class StagingTurns:
    """Engine thread. As many turns are made as iterations are in flight at once; one that fails keeps its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left: list[StagingTurn] = []

    def take(self) -> StagingTurn:
        """One that nobody uses, for one iteration."""
        return self._left.pop() if self._left else StagingTurn(self._device, self._left)


class StagingTurn:
    """One iteration's, from `StagingTurns.take` until `collect`.

    A step's seconds are the device's, because what the host does between two steps is no part of them: its preparation,
    or another process that kept it from launching, would make the same step 3 % longer or shorter each time (Llama-8B,
    one H200).
    """

    def __init__(self, device: torch.device, left: list[StagingTurn]) -> None:
        self._left = left
        self._inputs_taken = False
        self._inputs = pinned(_FIRST_NUM_BYTES, torch.uint8)
        self._ids = _PinnedIds()
        self._stream = torch.cuda.current_stream(device)
        self._began = torch.cuda.Event(enable_timing=True)
        # A thread that waits for it sleeps; for the default kind of event it would spin.
        self._done = torch.cuda.Event(enable_timing=True, blocking=True)

    def inputs(self, num_bytes: int) -> PinnedPart:
        """At least so much memory for copies to the device. Whoever asks again in the same iteration gets memory of its
        own."""
        if self._inputs_taken:
            return pinned(num_bytes, torch.uint8)
        self._inputs_taken = True
        if num_bytes > len(self._inputs.array):
            self._inputs = pinned(_power_of_two(num_bytes), torch.uint8)
        return self._inputs

    def begins(self) -> None:
        """All that is launched from now on is the step's; a moment noted before counts no more."""
        self._began.record(self._stream)

    def bring(self, token_ids: Tensor) -> None:
        """[N] int64, perhaps none, begin to be copied to the host, behind the work that makes them. Once."""
        if len(token_ids):
            self._ids.first(len(token_ids)).copy_(token_ids, non_blocking=True)
        self._done.record(self._stream)

    def is_done(self) -> bool:
        """Whether what it was told to `bring` is there."""
        is_done: bool = self._done.query()
        return is_done

    def collect(self, num: int) -> tuple[tuple[int, ...], float]:
        """Wait for the ids, and give the turn back: the first `num` of them, and the step's seconds by the device's
        clock, up to their arrival. Other threads run meanwhile. After a fault of the device it is not given back."""
        self._done.synchronize()
        token_ids: tuple[int, ...] = tuple(self._ids.whole.array[:num].tolist())
        seconds: float = self._began.elapsed_time(self._done) / 1000
        self._inputs_taken = False
        self._left.append(self)
        return token_ids, seconds


class PinnedPart:
    """The same memory as a tensor and as an array."""

    __slots__ = ("array", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array: npt.NDArray[Any] = tensor.numpy()


def pinned(num: int, dtype: torch.dtype) -> PinnedPart:
    """Fresh memory. It is handed out again only after the copies that used it: torch sees to that."""
    return PinnedPart(torch.empty(num, dtype=dtype, pin_memory=True))


class _PinnedIds:
    """int64, asked for in few numbers again and again: to cut a tensor costs nearly as much as to copy it."""

    def __init__(self) -> None:
        self.whole = pinned(_FIRST_NUM_IDS, torch.int64)
        self._parts: dict[int, Tensor] = {}

    def first(self, num: int) -> Tensor:
        """Of `whole` the first `num` entries. If it has fewer, it becomes longer, and what it held is gone."""
        part = self._parts.get(num)
        if part is None:
            if num > len(self.whole.array):
                self.whole = pinned(_power_of_two(num), torch.int64)
                self._parts.clear()
            part = self._parts[num] = self.whole.tensor[:num]
        return part


def _power_of_two(num: int) -> int:
    """The least that is not below `num`, which is positive."""
    return 1 << (num - 1).bit_length()
