from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.core.training import TrainingInterrupted
from service.engine.async_engine import AsyncEngine
from service.engine.live_training import tell_end
from service.errors import ServerError, TrainingDiverged, Unavailable
from service.scheduler.deferred_batching import DeferredBatching
from service.scheduler.interleaved_training import InterleavedTraining
from tests.engine.harness import Harness
from tests.engine.scripted_training import NotingListener, ScriptedTraining, TrainingToy
from tests.engine.test_async_engine import collect
from tests.engine.test_async_engine import run as run_async
from tests.examples import examples
from tests.manual_clock import ManualClock
from tests.scheduler.test_interleaved_training import KnownTime


class Play:
    def __init__(self, **options: object) -> None:
        self.clock = ManualClock()
        self.executor = TrainingToy(self.clock)
        self.harness = Harness(executor=self.executor, trainings=self.executor.trainings, clock=self.clock, **options)
        self.engine = self.harness.engine

    def training(self, num_iterations: int = 3, fails_at: int | None = None, **script: object) -> ScriptedTraining:
        return ScriptedTraining(self.clock, [0.01] * 4, num_iterations, fails_at, **script)

    def start(self, training: ScriptedTraining, *, fails: bool = False) -> NotingListener:
        listener = NotingListener(fails=fails)
        self.engine.training.start(training, listener)
        return listener

    def run(self) -> None:
        self.harness.run()
        assert not self.executor.trainings.live
        self.harness.check_books()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_training_runs_to_its_end_and_its_listener_hears_of_every_step(overlap: bool):
    play = Play(overlap=overlap)
    listener = play.start(play.training())
    play.run()
    assert [report.step for report in listener.reports] == [1, 2, 3]
    assert listener.snapshots == [3]
    assert listener.ends == [None]


@pytest.mark.parametrize("overlap", [False, True])
def test_another_one_can_follow_it(overlap: bool):
    play = Play(overlap=overlap)
    play.start(play.training())
    play.run()
    second = play.start(play.training(training_id=2))
    play.run()
    assert (len(second.reports), second.ends) == (3, [None])


def test_a_second_beside_it_is_refused_and_the_first_goes_on():
    play = Play()
    first = play.start(play.training())
    second = play.start(play.training(training_id=2))
    assert isinstance(second.ends[0], RuntimeError)
    play.run()
    assert (first.ends, len(second.ends)) == ([None], 1)


def test_an_executor_that_takes_none_is_a_fault_of_the_training():
    harness, listener = Harness(), NotingListener()
    harness.engine.training.start(ScriptedTraining(ManualClock(), [1.0]), listener)
    assert isinstance(listener.ends[0], RuntimeError)
    assert not harness.engine.has_work


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("wants_state", [False, True])
def test_it_can_be_stopped_and_goes_on_from_there(overlap: bool, wants_state: bool):
    play = Play(overlap=overlap)
    training = play.training()
    first = play.start(training)
    while training.num_done < 6:
        play.engine.step()
    play.engine.stop_training(1, wants_state=wants_state)
    assert (first.snapshots, first.ends) == ([1] if wants_state else [], [None])
    assert not play.engine.has_work
    again = play.start(training)
    play.run()
    assert [report.step for report in (*first.reports, *again.reports)] == [1, 2, 3]
    assert again.ends == [None]


@pytest.mark.parametrize(
    ("fault", "level"), [(TrainingDiverged("the loss is nan"), "INFO"), (ValueError("a defect"), "ERROR")]
)
def test_a_fault_of_the_clients_is_no_error_of_the_server(
    fault: Exception, level: str, caplog: pytest.LogCaptureFixture
):
    listener = NotingListener()
    with caplog.at_level("INFO"):
        tell_end(listener, fault)
    assert listener.ends == [fault]
    (record,) = caplog.records
    assert record.levelname == level and str(fault) in caplog.text
    assert bool(record.exc_info) == (level == "ERROR"), "a traceback tells of a defect"


def test_to_stop_one_that_is_not_there_does_nothing():
    play = Play()
    listener = play.start(play.training())
    play.engine.stop_training(2, wants_state=True)
    assert play.engine.has_work
    play.run()
    play.engine.stop_training(1, wants_state=True)
    assert listener.ends == [None]


def test_a_state_that_cannot_be_had_ends_it_with_that_fault():
    play = Play()
    listener = play.start(play.training(fails_in="state"))
    play.engine.step()
    play.engine.stop_training(1, wants_state=True)
    assert isinstance(listener.ends[0], MemoryError)
    assert not play.engine.has_work


def test_an_engine_that_ends_interrupts_it_with_a_snapshot():
    play = Play()
    training = play.training()
    listener = play.start(training)
    while training.num_done < 5:
        play.engine.step()
    play.engine.interrupt_training()
    assert listener.snapshots == [1]
    assert isinstance(listener.ends[0], TrainingInterrupted)
    play.engine.interrupt_training()
    assert len(listener.ends) == 1


@pytest.mark.parametrize("state_fails", [False, True])
def test_what_cannot_be_saved_at_the_end_is_told_all_the_same(state_fails: bool):
    play = Play()
    listener = play.start(play.training(fails_in="state" if state_fails else "advance"))
    play.engine.training.interrupt(wants_state=state_fails)
    assert listener.snapshots == []
    assert isinstance(listener.ends[0], TrainingInterrupted)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_listener_that_raises_ends_its_training_and_nothing_else(overlap: bool):
    play = Play(overlap=overlap)
    listener = play.start(play.training(), fails=True)
    play.harness.add(play.harness.request((1, 2), 5))
    play.run()
    assert len(listener.ends) == 1
    play.harness.check_against_oracle("request-0")


def test_an_executor_that_fails_with_layer_steps_ends_the_training_and_no_request():
    play = Play()
    play.executor.failing_waits = frozenset({2})
    listener = play.start(play.training())
    play.engine.step()
    play.engine.step()
    assert isinstance(listener.ends[0], ServerError)
    assert play.engine.failed.num_in_a_row == 1
    play.harness.add(play.harness.request((1, 2), 5))
    play.run()
    play.harness.check_against_oracle("request-0")


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), overlap=st.booleans(), is_interleaved=st.booleans())
def test_a_training_that_fails_anywhere_ends_and_no_request_notices(seed: int, overlap: bool, is_interleaved: bool):
    chance = random.Random(seed)
    policy = InterleavedTraining(KnownTime(), 0.05) if is_interleaved else DeferredBatching(chance.choice([0.0, 0.3]))
    play = Play(overlap=overlap, training=policy, num_blocks=chance.choice([12, 64]))
    fails_at = chance.randint(0, 60)
    training = play.training(15, fails_at, fails_in=chance.choice(["advance", "take_news"]))
    listener, harness = play.start(training), play.harness
    while not listener.ends or len(harness.requests) < 8:
        if chance.random() < 0.15:
            harness.add(harness.request((1 + len(harness.requests), 2, 3), chance.randint(1, 20)))
        harness.step()
    play.run()
    assert len(listener.ends) == 1
    assert isinstance(listener.ends[0], FloatingPointError) == (fails_at < 60)
    assert [report.step for report in listener.reports] == list(range(1, len(listener.reports) + 1))
    assert len(listener.reports) <= fails_at // 4
    assert len(harness.finals) == len(harness.requests)
    for request_id in harness.finals:
        harness.check_against_oracle(request_id)


def test_a_training_is_carried_on_beside_requests_and_can_be_stopped():
    clock = ManualClock()
    executor, listener = TrainingToy(clock), NotingListener()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        training = ScriptedTraining(clock, [0.01] * 4)
        engine.start_training(training, listener)
        request = harness.request((1, 2, 3), 7)
        harness.tokens[request.request_id, 0], final = await collect(engine.submit(request))
        harness.check_against_oracle(request.request_id)
        assert final.outcome is Outcome.FINISHED
        while training.num_done < 20:
            await asyncio.sleep(1e-3)
        assert engine.ailment() is None
        engine.stop_training(training.training_id, wants_state=True)
        while not listener.ends:
            await asyncio.sleep(1e-3)
        assert listener.ends == [None]
        assert listener.snapshots == [training.num_iterations_done]

    assert run_async(scenario, executor, trainings=executor.trainings) == []


def test_a_training_that_runs_at_the_end_leaves_a_snapshot_and_none_can_be_started_after_it():
    clock = ManualClock()
    executor, listener = TrainingToy(clock), NotingListener()

    async def scenario(engine: AsyncEngine, harness: Harness) -> None:
        training = ScriptedTraining(clock, [0.01] * 4)
        engine.start_training(training, listener)
        while training.num_done < 20:
            await asyncio.sleep(1e-3)
        await engine.drain(10.0)
        assert listener.snapshots == [training.num_iterations_done]
        assert isinstance(listener.ends[0], TrainingInterrupted)
        with pytest.raises(Unavailable):
            engine.start_training(training, listener)

    assert run_async(scenario, executor, trainings=executor.trainings) == []
