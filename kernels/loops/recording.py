"""Loops recorded once and replayed in one parallel region: what a CUDA graph is to a GPU.

A decode step of a small model is some 200 loops of ten to two hundred microseconds. Called one by one, each costs
Python, an entry into an OpenMP region, and a wait for every thread of the team. A recording is a list of addresses that
the threads walk through by themselves. A loop is done when all of its items are: a thread that the system suspends
between two items delays nobody, and catches up with the others when it returns.

All tensors stay where they were when recorded, so a replay needs new inputs to be written to the old places.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.loops.bf16 import count_up, int64_at
from kernels.loops.team import Loop, RecordedCall, recorded_calls
from kernels.loops.threads import call, give_way, peek

_aten = torch.ops.aten
_VIEWS = frozenset((_aten.view.default, _aten.slice.Tensor, _aten.flatten.using_ints))
_NEW = frozenset((_aten.empty.memory_format, _aten.empty_like.default))
_ALIGNMENT = 64  # bytes, a cache line
_Block = np.ndarray[Any, np.dtype[Any]]

_PLACE = 16  # int64 numbers, two cache lines: read-only data, then from _ENTERED on the counters
_ENTERED, _LEFT = 8, 9


@Loop
@no_type_check
def _walk(arguments):
    """Every thread walks through all calls. A call has a body, its arguments, and counts of threads that entered and
    left it.

    A thread counts itself as entered before it takes an item. So once no item is left, any thread that still works on
    one has entered and not left.
    """
    a = int64_at(arguments, 4)
    places, num_calls = a[2], a[3]
    for i in range(num_calls):
        place = places + i * 8 * _PLACE
        body, work = int64_at(place, 2)[0], int64_at(place, 2)[1]
        num_items = int64_at(work, 2)[1]
        entered, left = place + 8 * _ENTERED, place + 8 * _LEFT
        if peek(work) < num_items:
            count_up(entered)
            call(body, work)
            count_up(left)
        turns = 0
        while peek(work) < num_items or peek(left) != peek(entered):
            turns += 1
            give_way(turns)


class RecordedLoops:
    """`replay` computes `result` again from the present contents of the inputs. One replay at a time."""

    def __init__(
        self,
        lookups: Sequence[Callable[[], Any]],
        calls: Sequence[RecordedCall],
        looked_up: Sequence[Tensor],
        result: Tensor,
    ) -> None:
        self._lookups = lookups
        self._looked_up = looked_up  # read by their addresses
        self.result = result
        self._num_calls = len(calls)
        places = np.zeros((len(calls), _PLACE), np.int64)
        arguments = array("q")
        starts = []
        for recorded in calls:
            starts.append(len(arguments))
            arguments.extend(recorded.arguments)
            arguments.extend([0] * (-len(arguments) % 8))  # no two share a cache line
        self._memory = _aligned(np.concatenate((places.reshape(-1), np.array(arguments, np.int64))))
        begin = self._memory.ctypes.data
        for i, (recorded, start) in enumerate(zip(calls, starts, strict=True)):
            self._memory[i * _PLACE] = recorded.address
            self._memory[i * _PLACE + 1] = begin + 8 * (places.size + start)
        self._fresh = self._memory.copy()

    def replay(self) -> Tensor:
        for look_up in self._lookups:
            look_up()
        self._memory[:] = self._fresh
        _walk(True, 1, self._memory.ctypes.data, self._num_calls)
        return self.result


class Recorder:
    """Its recordings share memory: they are replayed one at a time, and each result is read before the next replay."""

    def __init__(self) -> None:
        self._memory = Arena()

    def record(self, compute: Callable[[], Tensor]) -> RecordedLoops | None:
        """Compute, and record how. None if the computation has anything but loops, views of tensors, and row lookups
        before the first loop: all else is torch's."""
        calls = list[RecordedCall]()
        seen = _SeenOperations(calls, self._memory)
        token = recorded_calls.set(calls)
        try:
            with seen:
                result = compute()
        except _OtherOperationError:
            return None
        finally:
            recorded_calls.reset(token)
        return RecordedLoops(seen.lookups, calls, seen.looked_up, result)


class Arena:
    """Memory for tensors that are made and dropped in the same order again and again."""

    def __init__(self) -> None:
        self._free = list[_Block]()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Like torch.empty; the memory is reused once this tensor and all its views are gone."""
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        fitting = [block for block in self._free if len(block) >= num_bytes]
        block = min(fitting, key=len) if fitting else _aligned(np.empty(max(1, num_bytes), np.uint8))
        if fitting:
            self._free = [other for other in self._free if other is not block]
        exported = (ctypes.c_byte * max(1, num_bytes)).from_buffer(block.data)
        weakref.finalize(exported, self._free_again, block)
        return torch.frombuffer(exported, dtype=torch.uint8)[:num_bytes].view(dtype).view(tuple(shape))

    def _free_again(self, block: _Block) -> None:
        self._free.append(block)


def _aligned(values: _Block) -> _Block:
    """A copy aligned to a cache line."""
    memory = np.empty(values.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


class _OtherOperationError(Exception):
    pass


class _SeenOperations(TorchDispatchMode):
    """Sees each torch operation; loops are none. lookups: lookups to repeat. looked_up: where their rows go."""

    def __init__(self, calls: Sequence[RecordedCall], memory: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self._calls = calls
        self._memory = memory
        self.looked_up = list[Tensor]()
        self.lookups = list[Callable[[], Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NEW:
            like = args[0] if isinstance(args[0], Tensor) else None
            dtype = (kwargs or {}).get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
            return self._memory.empty(args[0] if like is None else like.shape, dtype)
        if func is _aten.index_select.default and not self._calls:
            rows = func(*args)
            self.looked_up.append(rows)
            self.lookups.append(lambda: torch.index_select(*args, out=rows))
            return rows
        if func not in _VIEWS:
            raise _OtherOperationError
        view = func(*args, **(kwargs or {}))
        if view.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr():
            raise _OtherOperationError
        return view
