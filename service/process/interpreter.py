"""How Python runs while it serves: its own habits, made harmless (garbage collection, the hand-over of the GIL)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0001
SWITCH_INTERVAL_ON_CPU_S = 0.0005
"""How long a thread that has the interpreter may keep it from one that wants it. Python's own 5 ms is as long as an
iteration: the engine, woken by the device, would wait as long for the event loop. Where the engine's thread computes
itself, a hand-over costs more than the wait. Measured: loadtest/log/host.md."""

GC_THRESHOLDS = (20_000, 20, 20)
"""New objects between collections; Python's own threshold is 700. What a stream makes is freed without them."""


@contextmanager
def settled(*, is_gpu: bool) -> Iterator[None]:
    """Tune Python for serving: garbage collections skip what exists by now (it lives as long as the process) and are
    rarer, and threads hand the interpreter over sooner. All is undone at the end: libraries would otherwise report the
    skipped objects as leaks when the process ends.

    is_gpu: a device of its own runs the model.
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
