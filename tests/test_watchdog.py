from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import cast
from unittest.mock import patch

from service.engine.async_engine import AsyncEngine
from service.watchdog import LOOKS, watch_for_hangs

ROOT = Path(__file__).parents[1]


class Progress:
    """An engine as the watchdog sees it: `moments` are what it answers, one after the other, the last for ever."""

    def __init__(self, *moments: float | None) -> None:
        self._moments = [*moments]

    @property
    def busy_since_s(self) -> float | None:
        return self._moments.pop(0) if len(self._moments) > 1 else self._moments[0]


def hangs(*moments: float | None, within_s: float) -> bool:
    """Whether the watchdog calls it a hang within that time; 0.05 s would do. The tests' own process is not ended."""

    async def scenario() -> bool:
        told = asyncio.get_running_loop().create_future()
        engine = cast(AsyncEngine, Progress(*moments))
        with patch("service.watchdog.faulthandler"):
            watching = asyncio.create_task(watch_for_hangs(engine, 0.05, told.set_result))
            await asyncio.wait({told, watching}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
            await asyncio.wait({watching})
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


def test_an_event_loop_that_stands_still_ends_the_process_and_says_where():
    code = """
    import asyncio, time
    from service.watchdog import watch_for_hangs

    class Resting:
        busy_since_s = None

    async def main():
        watching = asyncio.create_task(watch_for_hangs(Resting(), 0.5, print))
        await asyncio.sleep(1)
        print("alive", flush=True)
        stand_still()

    def stand_still():
        time.sleep(60)

    asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50, cwd=ROOT
    )
    assert done.returncode == 1
    assert done.stdout == "alive\n"
    assert "in stand_still" in done.stderr
