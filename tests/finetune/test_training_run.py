from __future__ import annotations

import asyncio
import threading

from service.core.training import StepReport
from service.finetune.training_run import MAX_WAITING_STATES, TrainingRun
from tests.finetune.job_scene import State


def in_thread(tell: list[object], run: TrainingRun) -> None:
    def work() -> None:
        for each in tell:
            if isinstance(each, StepReport):
                run.step(each)
            elif isinstance(each, State):
                run.snapshot(each)
            else:
                run.ended(each if isinstance(each, Exception) else None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def report(step: int) -> StepReport:
    return StepReport(step, 1.0, 0.5, 10, 0.1, 1.0)


def test_all_steps_come_in_their_order_and_then_the_end():
    async def scene() -> None:
        run, fault = TrainingRun(lambda _: False), ValueError("why")
        in_thread([report(1), report(2)], run)
        told = await run.news()
        assert ([each.step for each in told.reports], told.is_over) == ([1, 2], False)
        in_thread([report(3), fault], run)
        told = await run.news()
        assert ([each.step for each in told.reports], told.is_over, told.fault) == ([3], True, fault)
        assert (await run.news()).is_over, "it does not wait for what will not come"

    asyncio.run(scene())


def test_of_states_that_wait_the_last_counts_and_those_that_are_kept_for_good():
    async def scene() -> None:
        run = TrainingRun(lambda state: state.step % 4 == 0)
        in_thread([State(step) for step in range(1, 11)], run)
        assert [state.step for state in (await run.news()).states] == [4, 8, 10]

    asyncio.run(scene())


def test_a_disk_that_does_not_keep_up_does_not_fill_the_memory():
    async def scene() -> None:
        run = TrainingRun(lambda _: True)
        in_thread([State(step) for step in range(1, 100)], run)
        states = (await run.news()).states
        assert len(states) == MAX_WAITING_STATES + 1
        assert states[-1].step == 99

    asyncio.run(scene())


def test_an_end_that_does_not_come_is_not_waited_for_longer_than_that():
    async def scene() -> None:
        async with asyncio.timeout(10):
            await TrainingRun(lambda _: True).ends(0.01)

    asyncio.run(scene())
