"""Whether an engine is found to be ailing, and why: executors that fail with everything or with one client's requests,
and an admission that never admits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest

from service.core.events import FinalEvent, Outcome
from service.core.iteration import INVALID_TOKEN_ID, IterationPlan, IterationResult
from service.core.request import Request
from service.core.sequence_group import SequenceGroup
from service.engine.ailment import Ailment, ailment_of
from service.engine.commands import Abort, Command, Expire, Submit
from service.engine.engine_loop import EngineLoop
from service.engine.engine_watch import MAX_FAILED_IN_A_ROW, PROBE_EVERY_S, STALLED_AFTER_S
from service.engine.outbox import News, one_by_one
from service.errors import Overloaded
from service.kvcache.block_manager import BlockManager, Fit
from service.scheduler.admission import OnDemandAdmission
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_model import ToyExecutor

POISON = 666
STUCK_AFTER_S = 5.0

Fault = Literal["nothing drawn", "raises"]


class PoisonedExecutor(ToyExecutor):
    """Fails with every plan that has `POISON` in it, and with all plans while `is_broken`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(64, 4, VOCABULARY)
        self.fault = fault
        self.is_broken = False
        self.poisoned: set[int] = set()
        self.num_iterations = 0

    def execute(self, plan: IterationPlan) -> IterationResult:
        result = super().execute(plan)
        self.num_iterations += bool(plan.scheduled)
        self.poisoned |= {item.sequence_id for item in plan.scheduled if POISON in item.token_ids}
        drawing = [sample.sequence_id for item in plan.scheduled for sample in item.samples]
        is_bad = [self.is_broken or sequence_id in self.poisoned for sequence_id in drawing]
        if self.fault == "raises" and (any(is_bad) or self.is_broken):
            raise RuntimeError("out of luck")
        pairs = zip(is_bad, result.token_ids, strict=True)
        return replace(result, token_ids=tuple(INVALID_TOKEN_ID if bad else token_id for bad, token_id in pairs))


class Served:
    """An engine whose loop is run by hand, and what it has published."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.finals = harness.finals
        self.waits: list[float] = []
        self.loop = EngineLoop(
            harness.engine, harness.clock, self._publish, lambda fault: None, wait=lambda _, s: not self.waits.append(s)
        )
        self.loop._thread = type("Alive", (), {"is_alive": lambda _: True})()

    def serve(self, *requests: Request) -> list[Outcome]:
        for request in requests:
            self.loop.send(Submit(request))
        while not {request.request_id for request in requests} <= self.finals.keys():
            self.loop._iterate()
        return [self.finals[request.request_id].outcome for request in requests]

    def ailment(self) -> Ailment | None:
        return ailment_of(self.loop, self.harness.clock.now_s(), STUCK_AFTER_S)

    def _publish(self, news: list[News]) -> None:
        self.finals.update({r: event for r, event in one_by_one(news) if isinstance(event, FinalEvent)})


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_model_that_answers_nobody_any_more_is_told_until_it_does(overlap: bool):
    executor = PoisonedExecutor("nothing drawn")
    served = Served(Harness(executor=executor, overlap=overlap))
    request = served.harness.request
    assert served.serve(request((1, 2), 3)) == [Outcome.FINISHED]
    executor.is_broken = True
    for number in range(MAX_FAILED_IN_A_ROW):
        assert served.ailment() is None, number
        assert served.serve(request((1, 2), 3)) == [Outcome.FAILED]
    ailment = served.ailment()
    assert ailment is not None and ailment.status == "failing"
    assert "3 iterations in a row failed, and so did a probe request" in ailment.reason
    assert served.loop.snapshot.num_failed_in_a_row == MAX_FAILED_IN_A_ROW
    executor.is_broken = False
    assert served.serve(request((1, 2), 3)) == [Outcome.FINISHED]
    assert served.ailment() is None, "one success is enough"
    assert served.loop.snapshot.num_failed_in_a_row == 0
    served.harness.check_nothing_left()


def test_a_long_prompts_chunks_are_no_successes():
    executor = PoisonedExecutor("nothing drawn")
    served = Served(Harness(executor=executor, max_num_batched_tokens=16))
    executor.is_broken = True
    for _ in range(MAX_FAILED_IN_A_ROW):
        assert served.serve(served.harness.request((1,) * 60, 3)) == [Outcome.FAILED]
    assert served.ailment() is not None


@pytest.mark.parametrize("fault", ["nothing drawn", "raises"])
def test_one_clients_bad_requests_ail_nobody_but_it(fault: Fault, overlap: bool):
    """They are sent again and again, as SDKs do after a 500, one at a time, so each is alone in its iteration."""
    executor = PoisonedExecutor(fault)
    served = Served(Harness(executor=executor, overlap=overlap))
    request = served.harness.request
    for _ in range(5 * MAX_FAILED_IN_A_ROW):
        assert served.serve(request((1, POISON), 3)) == [Outcome.FAILED]
        assert served.ailment() is None
        assert served.loop.snapshot.num_failed_in_a_row < MAX_FAILED_IN_A_ROW
    assert served.serve(request((1, 2), 6)) == [Outcome.FINISHED]
    served.harness.check_nothing_left()


def test_nor_does_a_bad_request_beside_good_ones_make_a_failed_iteration(overlap: bool):
    served = Served(Harness(executor=PoisonedExecutor("nothing drawn"), overlap=overlap))
    request = served.harness.request
    for _ in range(2 * MAX_FAILED_IN_A_ROW):
        outcomes = served.serve(request((1, 2), 9), request((1, POISON), 3), request((1, POISON), 3))
        assert outcomes == [Outcome.FINISHED, Outcome.FAILED, Outcome.FAILED]
        assert served.harness.engine.failed.num_in_a_row == 0


def test_an_executor_that_fails_with_a_probe_too_ends_the_thread():
    executor = PoisonedExecutor("raises")
    served = Served(Harness(executor=executor))
    executor.is_broken = True
    with pytest.raises(RuntimeError, match="3 iterations in a row have failed, and so has a probe"):
        for _ in range(MAX_FAILED_IN_A_ROW):
            served.serve(served.harness.request((1, 2), 3))


def test_a_probe_without_room_is_made_later():
    """Other requests keep their memory."""
    served = Served(Harness(executor=PoisonedExecutor("nothing drawn")))
    engine, pool = served.harness.engine, served.harness.blocks.pool
    taken = pool.allocate_many(pool.num_free)
    assert engine.probe() is None
    pool.release(taken.pop())
    assert engine.probe() is True
    assert pool.num_free == 1


def test_without_requests_an_engine_that_fails_looks_now_and_then_whether_it_still_does():
    """A load balancer sends nothing to an unhealthy server, so no request can show that it has recovered."""
    executor = PoisonedExecutor("nothing drawn")
    served = Served(Harness(executor=executor))
    executor.is_broken = True
    served.serve(*(served.harness.request((1, 2), 1) for _ in range(1)))
    while served.ailment() is None:
        served.serve(served.harness.request((1, 2), 1))
    before = executor.num_iterations
    looks: list[float | None] = []

    class Wake(threading.Event):
        """No request comes for four probes; before the last one the executor works again."""

        def wait(self, seconds: float | None = None) -> bool:
            looks.append(seconds)
            served.harness.clock.advance(seconds or 0.0)
            executor.is_broken = len(looks) < 4
            return seconds is None

    served.loop._wake = Wake()
    served.loop._rest()
    assert looks[1:] == [PROBE_EVERY_S] * 3 + [None]
    assert executor.num_iterations == before + 3
    assert served.ailment() is None


class Closed:
    """An admission that never admits until it is opened."""

    def __init__(self) -> None:
        self.is_open = False

    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        return OnDemandAdmission(0).fit(group, prefix, blocks, running, num_promised) if self.is_open else Fit.LATER


def stalled() -> tuple[Served, Closed]:
    served, admission = Served(Harness()), Closed()
    served.harness.scheduler.group_start._admission = admission
    for _ in range(3):
        served.loop.send(Submit(served.harness.request((1,) * 10, 3, n=2)))
    return served, admission


def stand_still(served: Served, seconds: float) -> None:
    for _ in range(4):
        served.loop._iterate()
        served.harness.clock.advance(seconds / 4)
    served.loop._iterate()


def test_requests_that_wait_while_nothing_runs_are_told_with_the_reason(caplog: pytest.LogCaptureFixture):
    served, admission = stalled()
    with caplog.at_level(logging.ERROR):
        stand_still(served, STUCK_AFTER_S)
        assert served.ailment() is None
        stand_still(served, STALLED_AFTER_S)
        stand_still(served, STALLED_AFTER_S)
    ailment = served.ailment()
    assert ailment == ("stalled", "no iteration has run for 25 s; waiting requests: 3")
    (line,) = caplog.messages
    assert "no iteration for" in line
    assert "requests: 3 waiting, 0 running; the first, request-0, has 10 tokens to compute for 2 sequences" in line
    assert "last waited for: memory; KV blocks: 64 of 64 free" in line
    assert len(served.waits) == 15, "it does not turn as fast as it can meanwhile"
    admission.is_open = True
    assert served.serve() == []
    while len(served.finals) < 3:
        served.loop._iterate()
    assert served.ailment() is None
    assert {final.outcome for final in served.finals.values()} == {Outcome.FINISHED}


@pytest.mark.parametrize("command", [Abort, lambda request_id: Expire(request_id, Overloaded("waited too long"))])
def test_a_stall_ends_with_those_who_wait(command: Callable[[str], Command]):
    served, _ = stalled()
    stand_still(served, 2 * STUCK_AFTER_S)
    assert served.ailment() is not None
    for number in range(3):
        served.loop.send(command(f"request-{number}"))
    served.loop._iterate()
    assert served.ailment() is None
    assert served.loop.watch.stalled_since_s is None


def test_a_full_house_is_no_stall():
    """Waiting for others to end is no stall as long as those run."""
    served = Served(Harness(max_num_seqs=1, num_blocks=16))
    for _ in range(4):
        served.loop.send(Submit(served.harness.request((1,) * 20, 30)))
    while len(served.finals) < 4:
        served.loop._iterate()
        served.harness.clock.advance(STUCK_AFTER_S / 2)
        assert served.loop.watch.stalled_since_s is None


def test_a_thread_that_has_ended():
    served = Served(Harness())
    served.loop._thread = type("Dead", (), {"is_alive": lambda _: False})()
    ailment = served.ailment()
    assert ailment is not None and ailment.status == "stopped"
