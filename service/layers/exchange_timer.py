"""How long exchanges between ranks take: host time on a CPU, device time (by events) on a GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_OF_SO_MANY = 8
"""On a GPU one exchange in this many is timed, since its two events cost the host about 10 us."""
_MOST_PENDING = 64


class ExchangeTimer:
    """Times exchanges of tensors that begin and end on the current stream. One thread at a time.

    note: called with the nanoseconds of each timed exchange, including the wait for other ranks. On a GPU it is called
    when a later exchange begins, since the host does not wait. Exchanges in a CUDA graph are not timed.
    """

    def __init__(self, note: Callable[[int], None]) -> None:
        self._note = note
        self._pending = deque[tuple[torch.cuda.Event, torch.cuda.Event]]()
        self._num_asked = 0

    @contextmanager
    def timed(self, x: Tensor) -> Iterator[None]:
        """Around an exchange of x."""
        if not x.is_cuda:
            began_ns = time.perf_counter_ns()
            yield
            self._note(time.perf_counter_ns() - began_ns)
        elif not self._is_chosen():
            yield
        else:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            yield
            ended.record()
            self._pending.append((began, ended))

    def _is_chosen(self) -> bool:
        self._num_asked += 1
        if self._num_asked % _OF_SO_MANY or torch.cuda.is_current_stream_capturing():
            return False
        self._note_pending()
        return len(self._pending) < _MOST_PENDING

    def _note_pending(self) -> None:
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.popleft()
            self._note(int(began.elapsed_time(ended) * 1e6))
