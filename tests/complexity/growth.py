"""What a row of the table is, and how its work is measured."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Literal

from service.errors import HeadraceError

Work = Callable[[], object]
Place = Literal["loop", "pool", "stream"]

_CLOCK_S = 0.002
"""Less than this is not told from nothing: four times as much may be the first that takes memory from the system."""


@dataclass(frozen=True)
class WorstInput:
    """The worst input that is known for one thing that reads client bytes, or a model's words, which a client steers.

    modules: whose work it is, as paths below service/. make(n): the work for an input of size n, made ready; what it is
    refused with is part of it. size: the least n that is measured: some milliseconds. most: what the door lets through.
    place: where it is done: on the event loop, in the text pool's threads, or on the loop but in n pieces, one a token.
    """

    name: str
    modules: tuple[str, ...]
    make: Callable[[int], Work]
    size: int
    most: int
    place: Place


def cpu_s(work: Work) -> float:
    """Seconds of the process's CPU: other processes are not counted, a library's own threads are."""
    started_s = time.process_time()
    _do(work)
    return time.process_time() - started_s


MOST_GROWTH = 9.0
"""Of four times the input: 4 is linear, 16 quadratic. 3 a doubling leaves room for n log n and for caches."""
_ATTEMPTS = 5
"""A busy machine can slow down one measurement; it cannot make a quadratic one linear."""
_DOUBLINGS = 3
"""Where the larger of two sizes leaves a cache that holds the smaller, four times as much takes seven or nine times as
long; at twice both sizes it no longer does. What is quadratic is so at each."""


def least_growth(row: WorstInput, factor: int = 4) -> float:
    """How many times as long `factor` times the size takes: the least of the row's size and its doublings, which are
    measured only as long as none was linear."""
    least = math.inf
    with _without_gc():
        for doubling in range(_DOUBLINGS):
            least = min(least, _growth_at(row.size * 2**doubling, row, factor))
            if least < MOST_GROWTH:
                break
    return least


def _growth_at(size: int, row: WorstInput, factor: int) -> float:
    """Of the quickest of some measurements each: as soon as that is linear, of all attempts otherwise.

    They take turns, so that a slow moment of the machine meets both. The larger warms the caches for the smaller, which
    is measured twice: one that is slow by chance would hide a growth.
    """
    small, large = list[float](), list[float]()
    ratio = math.inf
    for _ in range(_ATTEMPTS):
        large.append(cpu_s(row.make(size * factor)))
        small += [cpu_s(row.make(size)) for _ in range(2)]
        ratio = min(large) / max(min(small), _CLOCK_S)
        if ratio < MOST_GROWTH:
            break
    return ratio


def held_s(work: Work) -> tuple[float, float]:
    """Seconds that the work took, and the longest time for which no other thread came to run."""
    gaps, done = [0.0], threading.Event()

    def tick() -> None:
        last_s = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0005)
            now_s = time.perf_counter()
            gaps.append(now_s - last_s)
            last_s = now_s

    ticking = threading.Thread(target=tick)
    ticking.start()
    time.sleep(0.01)
    started_s = time.perf_counter()
    _do(work)
    took_s = time.perf_counter() - started_s
    done.set()
    ticking.join()
    return took_s, max(gaps)


def files_entered(work: Work) -> frozenset[str]:
    """The source files of all functions that the work enters."""
    entered = set[CodeType]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        entered.add(frame.f_code)

    sys.setprofile(note)
    try:
        _do(work)
    finally:
        sys.setprofile(None)
    return frozenset(code.co_filename for code in entered)


def _do(work: Work) -> None:
    with contextlib.suppress(HeadraceError):
        work()


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """A collection costs what the whole process has alive, not what the work is."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
