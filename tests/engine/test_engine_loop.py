from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from service.core.events import FinalEvent, Outcome
from service.core.iteration import IterationPlan, IterationResult
from service.core.training import TrainingInterrupted
from service.engine.commands import Abort, StartTraining, Stop, StopTraining, Submit
from service.engine.engine import Engine
from service.engine.engine_loop import SNAPSHOT_EVERY_S, EngineLoop
from service.engine.engine_watch import MAX_FAILED_IN_A_ROW
from service.engine.idle_turns import CATCH_UP_EVERY_S, IDLE_BEFORE_WORK_S, URGENT_EVERY_S
from service.engine.outbox import News, one_by_one
from service.engine.ports import Executor, PendingIteration
from service.errors import ServerError, Unavailable
from tests.engine.harness import Harness
from tests.engine.scripted_training import NotingListener, ScriptedTraining, TrainingToy
from tests.engine.test_engine import FaultyExecutor
from tests.manual_clock import ManualClock


class Outbox:
    """What the loop published. Tests can wait for the final events."""

    def __init__(self) -> None:
        self.finals: dict[str, FinalEvent] = {}
        self.deaths: list[BaseException] = []
        self._changed = threading.Condition()

    def publish(self, events: list[News]) -> None:
        with self._changed:
            self.finals.update({r: e for r, e in one_by_one(events) if isinstance(e, FinalEvent)})
            self._changed.notify_all()

    def wait_for(self, *request_ids: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(request_ids) <= set(self.finals), timeout=10)


def start(harness: Harness) -> tuple[EngineLoop, Outbox]:
    outbox = Outbox()
    loop = EngineLoop(harness.engine, harness.clock, outbox.publish, outbox.deaths.append)
    loop.start()
    return loop, outbox


def test_requests_are_served_and_the_thread_stops_in_order():
    harness = Harness()
    loop, outbox = start(harness)
    loop.send(Submit(harness.request((1, 2), 5)))
    outbox.wait_for("request-0")
    assert outbox.finals["request-0"].outcome is Outcome.FINISHED
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    assert outbox.deaths == []


class ToldExecutor:
    """Reports every launch and the start of every wait."""

    def __init__(self, inner: Executor, order: list[str]) -> None:
        self._inner = inner
        self._order = order

    def launch(self, plan: IterationPlan) -> PendingIteration:
        self._order.append("launch")
        pending = self._inner.launch(plan)
        return ToldIteration(pending, self._order)


@dataclass(frozen=True)
class ToldIteration:
    pending: PendingIteration
    order: list[str]

    def is_done(self) -> bool:
        return self.pending.is_done()

    def wait(self) -> IterationResult:
        self.order.append("wait")
        return self.pending.wait()


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_handed_over_when_all_is_launched_that_may_be(overlap: bool):
    """The thread waits next, so the event loop does not compete for the interpreter."""
    order: list[str] = []
    toy = Harness().toy
    harness = Harness(executor=ToldExecutor(toy, order), overlap=overlap)
    outbox = Outbox()

    def publish(events: list[News]) -> None:
        order.append("publish")
        outbox.publish(events)

    loop = EngineLoop(harness.engine, harness.clock, publish, outbox.deaths.append)
    loop.send(Submit(harness.request((1, 2), 4)))
    loop.start()
    outbox.wait_for("request-0")
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    plain = ["launch", "wait", "publish"] * 4
    ahead = ["launch", "launch", "wait", *["launch", "publish", "wait"] * 2, "publish", "wait", "publish"]
    assert order == (ahead if overlap else plain)


def test_a_request_is_queued_at_every_moment_until_it_starts(monkeypatch: pytest.MonkeyPatch):
    """Also while the thread takes it from the inbox: otherwise a burst could be accepted twice as large as allowed."""
    harness = Harness()
    outbox = Outbox()
    loop = EngineLoop(harness.engine, harness.clock, outbox.publish, outbox.deaths.append)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        queued = loop.num_queued()
        seen.append((queued.requests, queued.tokens))

    def look_around(function: Callable[..., Any]) -> Callable[..., Any]:
        def looking(*args: Any) -> Any:
            look()
            result = function(*args)
            look()
            return result

        return looking

    for _ in range(3):
        loop.send(Submit(harness.request((1, 2), 2)))
    requests = harness.engine.requests
    for owner, name in ((requests, "add"), (harness.engine, "snapshot"), (requests, "record_commands")):
        monkeypatch.setattr(owner, name, look_around(getattr(owner, name)))
    loop.start()
    outbox.wait_for("request-0", "request-1", "request-2")
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    look()
    assert seen[:10] == [(3, 6)] * 10
    assert seen[-1] == (0, 0)


def test_stopping_fails_what_still_runs():
    harness = Harness(num_blocks=4000)
    loop, outbox = start(harness)
    loop.send(Submit(harness.request((1, 2), 10_000)))
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    assert outbox.finals["request-0"].outcome is Outcome.FAILED
    assert str(outbox.finals["request-0"].error) == "bye"
    assert harness.blocks.pool.num_used == 0


def test_abort_before_the_request_ever_ran():
    harness = Harness()
    request = harness.request((1, 2), 10)
    outbox = Outbox()
    loop = EngineLoop(harness.engine, harness.clock, outbox.publish, outbox.deaths.append)
    loop.send(Submit(request))
    loop.send(Abort(request.request_id))
    loop.send(Abort("nobody"))
    assert loop.num_queued().requests == 1
    assert loop.num_queued().tokens == 2
    loop.start()
    outbox.wait_for("request-0")
    assert outbox.finals["request-0"].outcome is Outcome.ABORTED
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    assert loop.num_queued().requests == 0


def test_an_executor_that_only_fails_ends_the_thread_and_every_request():
    harness = Harness(
        max_num_seqs=1, max_num_batched_tokens=8, executor=FaultyExecutor(frozenset(range(99)), frozenset())
    )
    outbox = Outbox()
    loop = EngineLoop(harness.engine, harness.clock, outbox.publish, outbox.deaths.append)
    requests = [harness.request((1, 2), 5) for _ in range(MAX_FAILED_IN_A_ROW + 2)]
    for request in requests:
        loop.send(Submit(request))
    loop.start()
    outbox.wait_for(*[r.request_id for r in requests])
    assert loop.join(10)
    assert len(outbox.deaths) == 1
    assert all(isinstance(f.error, ServerError) for f in outbox.finals.values())


def test_a_fault_that_also_keeps_requests_from_ending_is_told(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("nothing can be ended any more")

    harness = Harness(max_num_batched_tokens=8)
    monkeypatch.setattr(harness.scheduler.group_end, "end_group", fail)
    loop, outbox = start(harness)
    for _ in range(2):
        loop.send(Submit(harness.request((1, 2), 5)))
    assert loop.join(10)
    assert len(outbox.deaths) == 1


class PiecesOfWork:
    """Idle work of `num_pieces`. Each waits for `allowed` and records what ran meanwhile."""

    def __init__(self, num_pieces: int) -> None:
        self.num_left = num_pieces
        self.allowed = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.threads: set[int] = set()

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        self.threads.add(threading.get_ident())
        self.begun.release()
        assert self.allowed.acquire(timeout=10)
        self.num_left = max(0, self.num_left - 1)
        return self.num_left > 0

    def is_missed(self) -> bool:
        return False

    def is_urgent(self) -> bool:
        return False


def test_idle_work_is_done_a_piece_at_a_time_and_requests_come_between():
    work = PiecesOfWork(5)
    harness = Harness(idle_work=work)
    loop, outbox = start(harness)
    for number in range(4):
        assert work.begun.acquire(timeout=10)
        loop.send(Submit(harness.request((1, 2), 5)))
        assert loop.busy_since_s is not None  # one that hangs is seen
        work.allowed.release()
        outbox.wait_for(f"request-{number}")
        assert work.num_left == 4 - number
    assert work.begun.acquire(timeout=10)
    work.allowed.release()
    loop.send(Submit(harness.request((1, 2), 5)))
    outbox.wait_for("request-4")
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    assert work.num_left == 0
    assert not work.begun.acquire(blocking=False)
    assert outbox.deaths == []
    assert len(work.threads) == 1


class EndlessPiece:
    """Idle work that ends only when it is given up."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.num_given_up = 0

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        assert must_give_up is not None
        self.begun.release()
        while not must_give_up():
            time.sleep(1e-3)
        self.num_given_up += 1
        return True

    def is_missed(self) -> bool:
        return False

    def is_urgent(self) -> bool:
        return False


def test_idle_work_is_given_up_when_somebody_comes_and_begun_again_after():
    work = EndlessPiece()
    harness = Harness(idle_work=work)
    loop, outbox = start(harness)
    for number in range(3):
        assert work.begun.acquire(timeout=10)
        loop.send(Submit(harness.request((1, 2), 5)))
        outbox.wait_for(f"request-{number}")
        assert work.num_given_up == number + 1
    assert work.begun.acquire(timeout=10)
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)
    assert outbox.deaths == []


def test_while_the_same_decodes_go_on_a_snapshot_is_taken_now_and_then():
    harness = Harness(num_blocks=64, block_size=1)
    loop = EngineLoop(harness.engine, harness.clock, lambda news: None, lambda fault: None)
    loop.send(Submit(harness.request((1, 2), 40)))
    told, used = [], []
    for number in range(12):
        if number == 8:
            harness.clock.advance(SNAPSHOT_EVERY_S)
        loop._iterate()
        told.append(loop.snapshot.used_blocks)
        used.append(harness.blocks.pool.num_used)
    assert used[3:] == list(range(used[3], used[3] + 9)), "a block an iteration"
    assert told[3:8] == [told[3]] * 5
    assert told[8:] == [used[8]] * 4


class MissedWork:
    """An urgent piece of idle work, done at once. Records each time whether iterations ran."""

    def __init__(self) -> None:
        self.missed = True
        self.urgent = False
        self.engine: Engine | None = None
        self.running: list[bool] = []

    def is_missed(self) -> bool:
        return self.missed

    def is_urgent(self) -> bool:
        return self.urgent

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        assert self.engine is not None
        assert must_give_up is None or not self.engine.has_work
        self.running.append(self.engine.has_launched)
        return False


def test_without_a_pause_what_iterations_miss_is_done_between_two_of_them_now_and_then():
    work = MissedWork()
    harness = Harness(num_blocks=64, idle_work=work, overlap=True)
    work.engine = harness.engine
    told: list[News] = []
    loop = EngineLoop(harness.engine, harness.clock, told.extend, lambda fault: None)
    loop.send(Submit(harness.request((1, 2), 60)))
    counts = []
    for number in range(16):
        if number in (4, 8, 12):
            harness.clock.advance(CATCH_UP_EVERY_S)
        work.missed = number != 8
        loop._iterate()
        counts.append(len(work.running))
    assert counts == [0] * 4 + [1] * 8 + [2] * 4
    assert not any(work.running)
    while harness.engine.has_work:
        loop._iterate()
    assert sum(len(list(one_by_one([news]))) for news in told) == 61, "each token, and the end"


def test_while_most_iterations_do_without_the_pieces_follow_each_other_sooner():
    work = MissedWork()
    harness = Harness(num_blocks=64, idle_work=work, overlap=True)
    work.engine, work.urgent = harness.engine, True
    loop = EngineLoop(harness.engine, harness.clock, lambda news: None, lambda fault: None)
    loop.send(Submit(harness.request((1, 2), 60)))
    counts = []
    for passed_s in (CATCH_UP_EVERY_S, URGENT_EVERY_S, URGENT_EVERY_S, URGENT_EVERY_S, CATCH_UP_EVERY_S):
        work.urgent = len(counts) < 2
        harness.clock.advance(passed_s)
        loop._iterate()
        counts.append(len(work.running))
    assert counts == [1, 2, 3, 3, 4]


def test_who_comes_after_a_pause_does_not_wait_for_what_is_missed():
    work = MissedWork()
    harness = Harness(num_blocks=64, idle_work=work, overlap=True)
    work.engine = harness.engine
    loop, outbox = start(harness)
    for number in range(3):
        while loop.busy_since_s is not None or len(work.running) <= number:
            time.sleep(1e-3)
        time.sleep(3 * IDLE_BEFORE_WORK_S)
        assert len(work.running) == number + 1, "once in each pause"
        harness.clock.advance(CATCH_UP_EVERY_S)
        loop.send(Submit(harness.request((1, 2), 5)))
        outbox.wait_for(f"request-{number}")
    loop.send(Stop(Unavailable("bye")))
    assert loop.join(10)


class TrainingLoop:
    """A loop whose engine may run trainings."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.executor = TrainingToy(self.clock)
        self.harness = Harness(
            executor=self.executor, trainings=self.executor.trainings, clock=self.clock, num_blocks=4000, **options
        )
        self.outbox = Outbox()
        self.loop = EngineLoop(
            self.harness.engine, self.clock, self.outbox.publish, self.outbox.deaths.append, wait=self._wait
        )
        self.loop.start()

    def _wait(self, event: threading.Event, seconds: float) -> bool:
        self.clock.advance(seconds)
        return event.is_set()

    def training(self, num_iterations: int = 1_000_000, training_id: int = 1) -> ScriptedTraining:
        return ScriptedTraining(self.clock, [0.01] * 4, num_iterations, training_id=training_id)

    def stop(self) -> None:
        self.loop.send(Stop(Unavailable("bye")))
        assert self.loop.join(10)
        assert self.outbox.deaths == []


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(1e-3)


@pytest.mark.parametrize("overlap", [False, True])
def test_commands_are_taken_between_layer_steps_and_the_loop_goes_on_with_a_training(overlap: bool):
    scene = TrainingLoop(overlap=overlap)
    training, listener = scene.training(), NotingListener()
    scene.loop.send(StartTraining(training, listener))
    until(lambda: training.num_done > 20)
    for number in range(3):
        scene.loop.send(Submit(scene.harness.request((1, 2), 5)))
        scene.outbox.wait_for(f"request-{number}")
        assert scene.loop.watch.stalled_since_s is None
        assert scene.loop.busy_since_s is not None
    so_far = training.num_done
    until(lambda: training.num_done > so_far)
    scene.loop.send(StopTraining(1, wants_state=True))
    until(lambda: listener.ends == [None])
    assert listener.snapshots == [training.num_iterations_done]
    until(lambda: scene.loop.busy_since_s is None)
    scene.stop()


@pytest.mark.parametrize("is_dead", [False, True])
def test_an_engine_that_stops_interrupts_the_training_and_those_that_wait_to_begin(is_dead: bool):
    scene = TrainingLoop()
    training, listeners = scene.training(), [NotingListener() for _ in range(3)]
    scene.loop.send(StartTraining(training, listeners[0]))
    until(lambda: training.num_done > 20)
    if is_dead:
        scene.executor.failing_waits = frozenset(range(1_000_000))
        for number in range(MAX_FAILED_IN_A_ROW - 1):
            scene.loop.send(Submit(scene.harness.request((1, 2), 5)))
            scene.outbox.wait_for(f"request-{number}")
        assert scene.loop.join(10)
        assert len(scene.outbox.deaths) == 1
    else:
        scene.loop.send(Stop(Unavailable("bye")))
        scene.loop.send(StartTraining(scene.training(training_id=2), listeners[1]))
        assert scene.loop.join(10)
        assert listeners[0].snapshots == [training.num_iterations_done]
        assert isinstance(listeners[1].ends[0], TrainingInterrupted)
    scene.loop.send(StartTraining(scene.training(training_id=3), listeners[2]))
    assert [len(listener.ends) for listener in listeners] == [1, 0 if is_dead else 1, 1]
    assert isinstance(listeners[0].ends[0], ServerError if is_dead else TrainingInterrupted)
    assert isinstance(listeners[2].ends[0], TrainingInterrupted)


def test_a_thread_that_dies_of_a_request_interrupts_the_training(monkeypatch: pytest.MonkeyPatch):
    scene = TrainingLoop()
    training, listener = scene.training(), NotingListener()
    scene.loop.send(StartTraining(training, listener))
    until(lambda: training.num_done > 20)
    monkeypatch.setattr(scene.harness.scheduler, "add", scene.harness.scheduler.schedule)
    monkeypatch.setattr(scene.harness.engine.requests, "fail_inside", None)
    scene.loop.send(Submit(scene.harness.request((1, 2), 5)))
    assert scene.loop.join(10)
    assert isinstance(listener.ends[0], TrainingInterrupted)
    assert listener.snapshots == [], "the executor may be what has failed"


def test_idle_work_is_done_beside_a_training_a_piece_at_a_time():
    work = PiecesOfWork(3)
    scene = TrainingLoop(idle_work=work, overlap=True)
    assert work.begun.acquire(timeout=10)
    work.allowed.release()
    training, listener = scene.training(), NotingListener()
    scene.loop.send(StartTraining(training, listener))
    for _ in range(2):
        assert work.begun.acquire(timeout=10)
        so_far = training.num_done
        work.allowed.release()
        until(lambda so_far=so_far: training.num_done > so_far)
    scene.loop.send(Submit(scene.harness.request((1, 2), 5)))
    scene.outbox.wait_for("request-0")
    assert work.num_left == 0
    assert not work.begun.acquire(blocking=False)
    scene.stop()
    assert isinstance(listener.ends[0], TrainingInterrupted)
