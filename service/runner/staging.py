"""Pinned memory on a GPU: for what an iteration sends to the device and the ids that come back. Also the step's time.

A copy from or to pinned memory runs while the host computes. Allocating such memory and events in each iteration costs
more than using them (loadtest/LOG.md), so iterations reuse them: a new one takes over the turn of one whose ids have
arrived. By then all copies of that turn have run, because they precede the ids in the device's stream. Other memory is
fresh, and torch reuses it only after the copies that used it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.runner.pinned_memory import PinnedPart, pinned, power_of_two

_FIRST_NUM_BYTES, _FIRST_NUM_IDS = 1 << 18, 1 << 11
"""Enough for nearly every iteration."""


class StagingTurns:
    """Engine thread. There are as many turns as iterations in flight at once. An iteration that fails keeps
    its turn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left: list[StagingTurn] = []

    def take(self) -> StagingTurn:
        """An unused turn, for one iteration."""
        return self._left.pop() if self._left else StagingTurn(self._device, self._left)


class StagingTurn:
    """The staging memory of one iteration, from `StagingTurns.take` until `collect`.

    A step's seconds are measured on the device. What the host does between two steps is no part of them: its
    preparation, or another process that delays a launch, would change the time of the same step by 3 % (Llama-8B, one
    H200).
    """

    def __init__(self, device: torch.device, left: list[StagingTurn]) -> None:
        self._left = left
        self._inputs_taken = False
        self._inputs = pinned(_FIRST_NUM_BYTES, torch.uint8)
        self._ids = _PinnedIds()
        self._stream = torch.cuda.current_stream(device)
        self._began = torch.cuda.Event(enable_timing=True)
        # A thread that waits for this event sleeps; with the default kind of event it would spin.
        self._done = torch.cuda.Event(enable_timing=True, blocking=True)

    def inputs(self, num_bytes: int) -> PinnedPart:
        """At least `num_bytes` of pinned memory for copies to the device. A second call in the same iteration gets
        separate memory."""
        if self._inputs_taken:
            return pinned(num_bytes, torch.uint8)
        self._inputs_taken = True
        if num_bytes > len(self._inputs.array):
            self._inputs = pinned(power_of_two(num_bytes), torch.uint8)
        return self._inputs

    def begins(self) -> None:
        """The step's time starts here. A later call replaces an earlier one."""
        self._began.record(self._stream)

    def bring(self, token_ids: Tensor) -> None:
        """Start copying these ids ([N] int64, N may be 0) to the host, behind the work that computes them.
        Called once."""
        if len(token_ids):
            self._ids.first(len(token_ids)).copy_(token_ids, non_blocking=True)
        self._done.record(self._stream)

    def is_done(self) -> bool:
        """Whether the ids of `bring` have arrived."""
        is_done: bool = self._done.query()
        return is_done

    def collect(self, num: int) -> tuple[tuple[int, ...], float]:
        """Wait for the ids and give the turn back. Returns the first `num` ids, and the step's seconds by the device's
        clock until they arrived. Other threads run meanwhile. After a device error the turn is not given back."""
        self._done.synchronize()
        token_ids: tuple[int, ...] = tuple(self._ids.whole.array[:num].tolist())
        seconds: float = self._began.elapsed_time(self._done) / 1000
        self._inputs_taken = False
        self._left.append(self)
        return token_ids, seconds


class _PinnedIds:
    """int64. Slices are cached, since a few lengths recur: slicing a tensor costs nearly as much as copying it."""

    def __init__(self) -> None:
        self.whole = pinned(_FIRST_NUM_IDS, torch.int64)
        self._parts: dict[int, Tensor] = {}

    def first(self, num: int) -> Tensor:
        """The first `num` entries of `whole`. If there are fewer, `whole` is replaced by a longer one and its content
        is lost."""
        part = self._parts.get(num)
        if part is None:
            if num > len(self.whole.array):
                self.whole = pinned(power_of_two(num), torch.int64)
                self._parts.clear()
            part = self._parts[num] = self.whole.tensor[:num]
        return part
