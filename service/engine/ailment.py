"""What /health reports: why a new short request would not be answered in time."""

from __future__ import annotations

from typing import NamedTuple

from service.engine.engine_loop import EngineLoop


class Ailment(NamedTuple):
    """status: one word for machines: `stopped`, `stuck`, `stalled` or `failing`. reason: a sentence for people, without
    confidential details."""

    status: str
    reason: str


def ailment_of(loop: EngineLoop, now_s: float, stuck_after_s: float) -> Ailment | None:
    """None if the engine is healthy. Any thread. now_s: on the engine's clock. stuck_after_s: the engine is `stuck` if
    an iteration has run longer than this, `stalled` if requests have waited longer while no iteration ran."""
    if not loop.is_alive:
        return Ailment("stopped", "the engine's thread has ended")
    stalled_since_s, busy_since_s = loop.watch.stalled_since_s, loop.busy_since_s
    if stalled_since_s is not None and now_s - stalled_since_s > stuck_after_s:
        seconds, num_waiting = now_s - stalled_since_s, loop.snapshot.num_waiting
        return Ailment("stalled", f"no iteration has run for {seconds:.0f} s; waiting requests: {num_waiting}")
    if busy_since_s is not None and now_s - busy_since_s > stuck_after_s:
        return Ailment("stuck", f"an iteration has run for {now_s - busy_since_s:.0f} s")
    failing = loop.watch.failing
    return None if failing is None else Ailment("failing", failing)
