"""A site that names nothing, or that is never called, would be a check that cannot fail."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.engine_sites import ENGINE_SITES
from tests.faults.fault_sites import FaultSite, Moment, Reach, armed
from tests.faults.runner_sites import RUNNER_SITES
from tests.faults.service_sites import SERVICE_SITES

EVERY_TABLE = (ENGINE_SITES, RUNNER_SITES, SERVICE_SITES)


class Worker:
    def __init__(self) -> None:
        self.done: list[int] = []

    def work(self, number: int) -> int:
        self.done.append(number)
        return number

    async def work_later(self, number: int) -> int:
        return self.work(number)

    def ask(self, number: int) -> int:
        return self.work(number)


WORK = FaultSite("work", f"{__name__}:Worker.work", Reach.REQUEST, OSError)


@pytest.mark.parametrize("table", EVERY_TABLE, ids=["engine", "runner", "service"])
def test_every_site_names_something_that_can_be_called(table: tuple[FaultSite, ...]):
    assert len({site.name for site in table}) == len(table)
    for site in table:
        owner, attribute = site.holder()
        assert callable(vars(owner)[attribute]), site.where


@pytest.mark.parametrize(
    "where", [f"{__name__}:Worker.rest", f"{__name__}:nothing", "tests.faults.nothing:work", "service.engine:Engine"]
)
def test_a_site_that_names_nothing_is_an_error(where: str):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        FaultSite("gone", where, Reach.REQUEST).holder()


@pytest.mark.parametrize(("moment", "done"), [("before", [1, 3]), ("after", [1, 2, 3])])
def test_the_nth_call_fails_and_no_other(moment: Moment, done: list[int]):
    worker = Worker()
    with armed(WORK, 2, moment) as count:
        assert worker.work(1) == 1
        with pytest.raises(OSError, match="call 2 of work"):
            worker.work(2)
        assert worker.work(3) == 3
    assert (worker.done, count.num_calls) == (done, 3)
    assert worker.work(4) == 4
    assert count.num_calls == 3, "disarmed"


@pytest.mark.parametrize(("moment", "done"), [("before", []), ("after", [1])])
def test_what_is_awaited_fails_while_it_is(moment: Moment, done: list[int]):
    worker = Worker()
    with armed(FaultSite("later", f"{__name__}:Worker.work_later", Reach.REQUEST), 1, moment):
        waiting = worker.work_later(1)
        with pytest.raises(RuntimeError):
            asyncio.run(waiting)
    assert worker.done == done


def test_of_a_site_with_a_caller_other_calls_do_not_count():
    worker = Worker()
    with armed(FaultSite("asked", WORK.where, Reach.REQUEST, caller="ask"), 1):
        assert worker.work(1) == 1
        with pytest.raises(RuntimeError):
            worker.ask(2)
