from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import cast

import pytest

from service.engine.async_engine import AsyncEngine
from service.process.watchdog import LOOKS, TO_END_S, HangGuard, watch_for_hangs

ROOT = Path(__file__).parents[2]


class Progress:
    """An engine as the watchdog sees it: `moments` are what it answers, one after the other, the last for ever."""

    def __init__(self, *moments: float | None) -> None:
        self._moments = [*moments]

    @property
    def busy_since_s(self) -> float | None:
        return self._moments.pop(0) if len(self._moments) > 1 else self._moments[0]


class ToldGuard:
    """Ends nothing, and keeps what it was told."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.is_dismissed = False

    def renew(self, seconds: float) -> None:
        self.times_s.append(seconds)

    def dismiss(self) -> None:
        self.is_dismissed = True


def hangs(*moments: float | None, within_s: float) -> bool:
    """Whether the watchdog calls it a hang within that time; 0.05 s would do. The tests' own process is not ended."""

    async def scenario() -> bool:
        told = asyncio.get_running_loop().create_future()
        engine, guard = cast(AsyncEngine, Progress(*moments)), ToldGuard()
        watching = asyncio.create_task(watch_for_hangs(engine, 0.05, told.set_result, cast(HangGuard, guard)))
        await asyncio.wait({told, watching}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait({watching})
        assert set(guard.times_s[:-1]) == {0.05}
        assert guard.times_s[-1] == (TO_END_S if told.done() else 0.05), "the end is guarded, too"
        assert guard.is_dismissed is not told.done()
        return told.done()

    return asyncio.run(scenario())


def test_an_iteration_that_does_not_end_is_told_of():
    assert hangs(None, 1.0, 2.0, 3.0, within_s=10)


def test_rest_and_progress_are_not():
    assert not hangs(None, within_s=0.3)
    assert not hangs(*(float(i) for i in range(10_000)), within_s=0.3)


def test_progress_counts_from_the_start_again():
    slow = [float(i) for i in range(6) for _ in range(LOOKS)]  # the first sight of each is no repetition
    assert not hangs(*slow, None, within_s=0.5)


STANDS_STILL = """
import asyncio, ctypes, sys, time
from service.process.watchdog import HangGuard, watch_for_hangs

class Resting:
    busy_since_s = None

async def main():
    watching = asyncio.create_task(watch_for_hangs(Resting(), 0.5, print, HangGuard()))
    await asyncio.sleep(1)
    print("alive", flush=True)
    if "unread" in sys.argv:
        import os
        os.set_blocking(2, False)
        try:
            while os.write(2, b"x" * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(2, True)
    stand_still()

def stand_still():
    if "released" in sys.argv:
        time.sleep(60)
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second never returns, nor does it let others have the interpreter
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

asyncio.run(main())
"""


@pytest.mark.parametrize("interpreter", ["released", "held"])
def test_an_event_loop_that_stands_still_ends_the_process_and_says_where(interpreter: str):
    command = [sys.executable, "-c", STANDS_STILL, interpreter]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout == "alive\n"
    assert "in stand_still" in done.stderr


@pytest.mark.parametrize("interpreter", ["released", "held"])
def test_it_ends_the_process_also_if_nobody_reads_what_it_says(interpreter: str):
    command = [sys.executable, "-c", STANDS_STILL, interpreter, "unread"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.communicate()


def test_a_guard_that_is_dismissed_ends_nothing():
    code = """
    import time
    from service.process.watchdog import TO_SHOW_STACKS_S, HangGuard

    guard = HangGuard()
    guard.renew(0.2)
    guard.dismiss()
    time.sleep(0.4 + TO_SHOW_STACKS_S)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
