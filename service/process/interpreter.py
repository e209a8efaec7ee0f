"""Tunes Python for serving: garbage collection, and the hand-over of the GIL."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0001
SWITCH_INTERVAL_ON_CPU_S = 0.0005
"""How long a thread may keep the GIL from another that wants it. Python's own 5 ms is as long as an iteration: the
engine, woken by the device, would wait that long for the event loop. On a CPU the engine's thread computes itself,
so a hand-over costs more than the wait. Measured: loadtest/log/host.md."""

GC_THRESHOLDS = (20_000, 20, 20)
"""New objects between collections; Python's own threshold is 700. The objects of a stream are freed without them."""


@contextmanager
def settled(*, is_gpu: bool) -> Iterator[None]:
    """Within this context, garbage collections skip the objects that exist at its start (they live as long as the
    process) and are rarer, and threads hand over the GIL sooner. Everything is undone at the end: else libraries
    report the skipped objects as leaks when the process ends.

    is_gpu: the model runs on a device of its own.
    """
    switch_interval_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_S if is_gpu else SWITCH_INTERVAL_ON_CPU_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        sys.setswitchinterval(switch_interval_s)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
