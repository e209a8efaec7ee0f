"""Device idle time while a batch decodes, from a profiler's timeline.

A gap is the time between two kernels in which no kernel runs on any stream. Gaps within a step's CUDA graph take a
microsecond or two. Host time that is not hidden shows up between the last kernel of a step and the first of the next
one, so gaps are reported with the kernels around them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch

from loadtest.bench.kernel_profile import trace_events
from loadtest.bench.offline_run import greedy_requests
from loadtest.bench.report import print_table
from service.engine.engine import Engine
from service.engine.outbox import one_by_one

_BORDERS_US = (2.0, 5.0, 20.0, 100.0)
_NUM_PAIRS = 6
_NAME_LEN = 40
_NUM_SETTLING = 8
"""Steps with the whole batch that are run first and not counted."""


class Span(NamedTuple):
    """A kernel or a copy. Microseconds on the profiler's clock."""

    name: str
    start_us: float
    end_us: float


class Gap(NamedTuple):
    """before: the kernel that ended last. after: the one that starts next."""

    us: float
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """steps: number of profiled ones. step_ms, profiled_step_ms: median without and with the profiler. window_us: from
    the start of the first kernel to the end of the last. copies_us: sum over all copies."""

    batch_size: int
    steps: int
    step_ms: float
    profiled_step_ms: float
    window_us: float
    copies_us: float
    num_kernels: int
    gaps: Sequence[Gap]

    @property
    def idle_us(self) -> float:
        return sum(gap.us for gap in self.gaps)


def output_len_of(batch_size: int, input_len: int, num_steps: int) -> int:
    """Output tokens per request, so many that the first request still decodes when the measurement ends. Prefill takes
    long meanwhile: an iteration may compute only a few prompts beside the decodes."""
    return 2 * num_steps + 2 * _NUM_SETTLING + batch_size * input_len // 256


def measure_idle(engine: Engine, batch_size: int, input_len: int, num_steps: int, vocab_size: int) -> DeviceIdle:
    """Measure steps in which the whole batch decodes: first their time without the profiler, then with it. The engine
    must be idle; it is idle again afterwards."""
    output_len = output_len_of(batch_size, input_len, num_steps)
    for request in greedy_requests([(input_len, output_len)] * batch_size, vocab_size, seed=0):
        engine.requests.add(request)
    computed = set[str]()
    while len(computed) < batch_size:
        engine.step()
        computed.update(request_id for request_id, _ in one_by_one(engine.requests.events.take()))
    _step_seconds(engine, _NUM_SETTLING)
    alone_s = _step_seconds(engine, num_steps)
    is_gpu = torch.cuda.is_available()
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if is_gpu else activity.CPU]) as profile:
        profiled_s = _step_seconds(engine, num_steps)
        if is_gpu:
            torch.cuda.synchronize()
    assert len(engine.requests.request_ids()) == batch_size, "all of them still decode"
    while engine.has_work:
        engine.step()
    engine.requests.events.take()
    trace = trace_events(profile)
    kernels = spans(trace, {"kernel"} if is_gpu else {"cpu_op"})
    copies = spans(trace, {"gpu_memcpy", "gpu_memset"})
    return DeviceIdle(
        batch_size,
        num_steps,
        1e3 * median(alone_s),
        1e3 * median(profiled_s),
        max(span.end_us for span in kernels) - kernels[0].start_us,
        sum(span.end_us - span.start_us for span in copies),
        len(kernels),
        gaps_between(kernels),
    )


def spans(events: Iterable[Mapping[str, Any]], categories: set[str]) -> list[Span]:
    """The spans of these categories in a Chrome trace, in order of start."""
    found = [
        Span(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("cat") in categories and "dur" in event
    ]
    return sorted(found, key=lambda span: span.start_us)


def gaps_between(kernels: Sequence[Span]) -> list[Gap]:
    """kernels: in order of start; they may overlap."""
    gaps = []
    last = kernels[0]
    for kernel in kernels[1:]:
        if kernel.start_us > last.end_us:
            gaps.append(Gap(kernel.start_us - last.end_us, last.name, kernel.name))
        if kernel.end_us > last.end_us:
            last = kernel
    return gaps


def print_idle(idle: DeviceIdle) -> None:
    per_step = 1 / idle.steps
    print(
        f"batch {idle.batch_size}, {idle.steps} steps: {idle.step_ms:.3f} ms a step, {idle.profiled_step_ms:.3f} with "
        f"the profiler; {idle.num_kernels * per_step:.0f} kernels, {idle.copies_us * per_step:.1f} us of copies"
    )
    print(f"no kernel runs for {100 * idle.idle_us / idle.window_us:.1f} % of the time; a step's gaps by length:")
    print_table(
        ["gap, us", "gaps a step", "us a step", "longest, us"],
        [
            [name, f"{len(gaps) * per_step:.1f}", f"{sum(gaps) * per_step:.1f}", f"{max(gaps, default=0.0):.1f}"]
            for name, gaps in _by_length(idle.gaps)
        ],
    )
    print("where most of it is:")
    print_table(
        ["kernel before -> kernel after", "gaps a step", "us a step", "median, us"],
        [
            [
                f"{before[:_NAME_LEN]} -> {after[:_NAME_LEN]}",
                *(f"{len(us) * per_step:.2f}", f"{sum(us) * per_step:.1f}", f"{median(us):.1f}"),
            ]
            for (before, after), us in _by_place(idle.gaps)[:_NUM_PAIRS]
        ],
    )


def idle_json(idle: DeviceIdle) -> dict[str, object]:
    """Values in microseconds are per step."""
    return {
        "batch_size": idle.batch_size,
        "steps": idle.steps,
        "step_ms": idle.step_ms,
        "profiled_step_ms": idle.profiled_step_ms,
        "idle_us": idle.idle_us / idle.steps,
        "idle_share": idle.idle_us / idle.window_us,
        "copies_us": idle.copies_us / idle.steps,
        "gaps_us": {name: sum(gaps) / idle.steps for name, gaps in _by_length(idle.gaps)},
    }


def _by_length(gaps: Sequence[Gap]) -> list[tuple[str, list[float]]]:
    borders = (0.0, *_BORDERS_US, float("inf"))
    return [
        (f"{low:g} to {high:g}", [gap.us for gap in gaps if low <= gap.us < high]) for low, high in pairwise(borders)
    ]


def _by_place(gaps: Sequence[Gap]) -> list[tuple[tuple[str, str], list[float]]]:
    """Gaps by the kernels around them; largest total time first."""
    by_place = defaultdict[tuple[str, str], list[float]](list)
    for gap in gaps:
        by_place[gap.before, gap.after].append(gap.us)
    return sorted(by_place.items(), key=lambda item: -sum(item[1]))


def _step_seconds(engine: Engine, num_steps: int) -> list[float]:
    """Seconds between the ends of `engine.step` calls; with overlap, each waits for the iteration before."""
    seconds, before_s = [], time.perf_counter()
    for _ in range(num_steps):
        engine.step()
        engine.requests.events.take()
        now_s = time.perf_counter()
        seconds.append(now_s - before_s)
        before_s = now_s
    return seconds
