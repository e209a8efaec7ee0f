import asyncio
import functools
import statistics
import time

from loadtest.precise_timer import PreciseTimer


def test_can_wake_within_half_a_millisecond_and_never_early() -> None:
    async def run() -> list[float]:
        timer = PreciseTimer(asyncio.get_running_loop())
        late = []
        for i in range(40):
            due = time.perf_counter() + 0.003 + 0.0001 * i
            await timer.sleep_until(due)
            late.append(time.perf_counter() - due)
        timer.close()
        return late

    late = [lateness for _ in range(3) for lateness in asyncio.run(run())]
    assert min(late) >= 0
    assert statistics.quantiles(late, n=10)[0] < 5e-4


def test_callbacks_come_in_the_order_of_their_times() -> None:
    async def run() -> list[int]:
        timer = PreciseTimer(asyncio.get_running_loop())
        now = time.perf_counter()
        seen: list[int] = []
        for i in (3, 1, 2, 0):
            timer.call_at(now + 0.005 * i, functools.partial(seen.append, i))
        await timer.sleep_until(now + 0.03)
        timer.close()
        return seen

    assert asyncio.run(run()) == [0, 1, 2, 3]


def test_what_is_past_does_not_suspend() -> None:
    async def run() -> None:
        loop, others = asyncio.get_running_loop(), list[str]()
        timer = PreciseTimer(loop)
        loop.call_soon(others.append, "ran")
        await timer.sleep_until(time.perf_counter() - 1)
        assert others == []
        timer.close()
        timer.close()  # twice is fine

    asyncio.run(run())
