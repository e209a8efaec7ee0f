"""A log line every few seconds while there is work, with what an operator looks for first."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from service.core.stats import EngineSnapshot
from service.metrics.counter_total import counter_total
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import ReadSnapshot, kv_usage

_logger = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class _Totals:
    """Since the start."""

    prompt_tokens: float
    queried_tokens: float
    hit_tokens: float
    generated_tokens: float
    preemptions: float
    refusals: float


class LoadLog:
    """Reports what happened since the last call. One thread."""

    def __init__(self, instruments: Instruments, read_snapshot: ReadSnapshot) -> None:
        self._instruments = instruments
        self._read_snapshot = read_snapshot
        self._before = self._totals()

    def line(self, seconds: float) -> str | None:
        """The load of the last `seconds`; None if there was none and nothing was refused."""
        before, now = self._before, self._totals()
        snapshot = self._read_snapshot() or EngineSnapshot()
        if now == before and not (snapshot.num_running or snapshot.num_waiting):
            return None
        self._before = now
        queried = now.queried_tokens - before.queried_tokens
        cached = (now.hit_tokens - before.hit_tokens) / queried if queried else 0.0
        return (
            f"requests: {snapshot.num_running} running, {snapshot.num_waiting} waiting"
            f" ({snapshot.num_swapped} swapped), KV cache {kv_usage(snapshot):.0%} used;"
            f" tokens a second: {(now.prompt_tokens - before.prompt_tokens) / seconds:.0f} of prompts"
            f" ({cached:.0%} cached), {(now.generated_tokens - before.generated_tokens) / seconds:.0f} generated;"
            f" {now.preemptions - before.preemptions:.0f} preemptions, {now.refusals - before.refusals:.0f} refusals"
        )

    def _totals(self) -> _Totals:
        of = self._instruments
        return _Totals(
            prompt_tokens=counter_total(of.tokens, kind="prompt"),
            queried_tokens=counter_total(of.prefix_queried_tokens),
            hit_tokens=counter_total(of.prefix_hit_tokens),
            generated_tokens=counter_total(of.tokens, kind="generated"),
            preemptions=counter_total(of.preemptions),
            refusals=counter_total(of.rejections),
        )


async def log_load(load: LoadLog, every_s: float) -> None:
    """Logs the line every `every_s` seconds, if there is one; until cancelled."""
    logged_s = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        now_s = time.monotonic()
        line = load.line(now_s - logged_s)
        logged_s = now_s
        if line is not None:
            _logger.info("%s", line)
