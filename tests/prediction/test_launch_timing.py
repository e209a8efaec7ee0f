from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.engine.commands import Abort, Command, Submit
from service.engine.engine_loop import LOOK_EVERY_S, EngineLoop
from service.prediction.iteration_time import IterationTime
from service.prediction.launch_timing import LATE_SHARE, LEAST_SPARE_S, LaunchTiming
from service.prediction.workload import Workload
from tests.engine.harness import Harness
from tests.engine.late_executor import LateIteration
from tests.engine.toy_model import ToyExecutor
from tests.examples import examples
from tests.manual_clock import ManualClock

STEP_S, LAUNCH_S, SPREAD = 5e-3, 8e-4, 0.03
STARTING_S = 3 * LAUNCH_S
"""A launch that starts requests."""


def spare_of(
    timing: LaunchTiming, now_s: float = 0.0, *, has_prompts: bool = False, has_arrivals: bool = False
) -> float:
    """For an iteration that begins at 0 and should take STEP_S."""
    timing.runs(0.0, STEP_S, "prompts" if has_prompts else "decodes")
    return timing.spare_s(now_s, has_arrivals=has_arrivals)


def launch(timing: LaunchTiming, begun_s: float, took_s: float, launch_s: float, *, has_arrivals: bool = False) -> bool:
    """Behind an iteration that takes `took_s`. Whether it was late."""
    timing.launches(begun_s, has_arrivals=has_arrivals)
    timing.launched()
    is_late = begun_s + launch_s > took_s
    timing.ended(max(took_s, begun_s + launch_s), is_exact=not is_late)
    return is_late


def seen(
    timing: LaunchTiming, took_s: float, launch_s: float = LAUNCH_S, rounds: int = 400, *, has_arrivals: bool = False
) -> int:
    """Iterations that should have taken STEP_S and took `took_s`, each with a launch behind it, delayed as long as may
    be. How many launches were late."""
    return sum(
        launch(timing, spare_of(timing, has_arrivals=has_arrivals), took_s, launch_s, has_arrivals=has_arrivals)
        for _ in range(rounds)
    )


@pytest.mark.parametrize("took_s", [0.5 * STEP_S, STEP_S, 1.4 * STEP_S])
def test_the_launch_ends_just_before_the_iteration(took_s: float):
    timing = LaunchTiming()
    seen(timing, took_s)
    assert spare_of(timing) + LAUNCH_S == pytest.approx(took_s, rel=0.03)


def test_as_many_launches_are_late_as_may_be_whatever_varies():
    chance, timing = random.Random(0), LaunchTiming()
    num_late = [seen(timing, STEP_S * chance.gauss(1, 0.04), LAUNCH_S * chance.expovariate(1), 1) for _ in range(9000)]
    assert sum(num_late[1000:]) / 8000 == pytest.approx(LATE_SHARE, rel=0.3)


def test_after_late_launches_it_is_careful_for_a_while():
    timing = LaunchTiming()
    seen(timing, STEP_S)
    usual_s = spare_of(timing)
    # How much too short an iteration was that had ended before the launch, nobody saw.
    assert seen(timing, 0.7 * STEP_S, rounds=7) >= 4
    assert spare_of(timing) <= usual_s - 0.2 * STEP_S
    seen(timing, STEP_S)
    assert spare_of(timing) == pytest.approx(usual_s, rel=0.05)


def test_one_slow_launch_is_no_reason_for_much_care():
    timing = LaunchTiming()
    seen(timing, STEP_S)
    usual_s = spare_of(timing)
    assert seen(timing, STEP_S, 20 * LAUNCH_S, rounds=1) == 1
    assert usual_s - LAUNCH_S / 2 < spare_of(timing) < usual_s


def test_an_iteration_with_nothing_behind_it_says_nothing_of_the_lead():
    timing = LaunchTiming()
    seen(timing, STEP_S)
    usual_s = spare_of(timing)
    for _ in range(500):
        spare_of(timing)
        timing.ended(STEP_S, is_exact=True)
    assert spare_of(timing) == pytest.approx(usual_s, rel=0.01)


def test_a_lead_that_became_too_long_shrinks_though_nothing_is_delayed():
    timing = LaunchTiming()
    while (spare_s := spare_of(timing)) > 0:
        launch(timing, spare_s, STEP_S, STEP_S)
    assert seen(timing, STEP_S) > 0
    assert spare_of(timing) + LAUNCH_S == pytest.approx(STEP_S, rel=0.03)


def test_iterations_with_prompts_are_guessed_apart():
    timing = LaunchTiming()
    seen(timing, STEP_S)
    usual_s = spare_of(timing, has_prompts=True)
    seen(timing, 0.5 * STEP_S, rounds=3)
    assert spare_of(timing, has_prompts=True) == pytest.approx(usual_s, rel=0.1)


def test_a_launch_that_takes_as_long_as_the_iteration_is_never_delayed():
    timing = LaunchTiming()
    seen(timing, STEP_S, launch_s=STEP_S)
    assert spare_of(timing) == 0.0


def test_nothing_is_delayed_by_too_little():
    timing = LaunchTiming()
    spare_s = spare_of(timing)
    assert timing.spare_s(0.5 * spare_s, has_arrivals=False) == pytest.approx(0.5 * spare_s)
    assert timing.spare_s(spare_s - 0.5 * LEAST_SPARE_S, has_arrivals=False) == pytest.approx(0.5 * LEAST_SPARE_S)
    assert spare_of(timing, spare_s - 0.9 * LEAST_SPARE_S) == 0.0
    assert spare_of(timing) == spare_s


def learnt() -> LaunchTiming:
    """Launches of both kinds, one in four with arrivals."""
    timing = LaunchTiming()
    for _ in range(400):
        seen(timing, STEP_S, rounds=3)
        seen(timing, STEP_S, STARTING_S, rounds=1, has_arrivals=True)
    return timing


def test_each_kind_of_launch_ends_just_before_the_iteration():
    timing = learnt()
    assert spare_of(timing) + LAUNCH_S == pytest.approx(STEP_S, rel=0.03)
    assert spare_of(timing, has_arrivals=True) + STARTING_S == pytest.approx(STEP_S, rel=0.06)


def test_an_early_arrival_is_delayed_until_its_launch_is_due():
    timing = learnt()
    due_s = spare_of(timing, has_arrivals=True)
    assert spare_of(timing) > due_s
    assert timing.spare_s(0.4 * due_s, has_arrivals=True) == pytest.approx(0.6 * due_s)


def test_a_late_arrival_is_launched_at_once_and_that_its_launch_is_late_says_nothing():
    timing = learnt()
    due_s, quiet_due_s = spare_of(timing, has_arrivals=True), spare_of(timing)
    assert quiet_due_s - due_s > STARTING_S / 2
    for begun_s in (0.5 * (due_s + quiet_due_s), quiet_due_s):
        for _ in range(20):
            assert spare_of(timing) > 0.0
            assert timing.spare_s(begun_s, has_arrivals=True) == 0.0
            assert launch(timing, begun_s, STEP_S, STARTING_S, has_arrivals=True)
    assert spare_of(timing, has_arrivals=True) == due_s
    assert spare_of(timing) == quiet_due_s


def test_a_lead_that_became_too_long_shrinks_though_everybody_arrives_late():
    timing = learnt()
    begun_s = spare_of(timing)
    for _ in range(400):
        spare_of(timing)
        launch(timing, begun_s, STEP_S, LAUNCH_S / 2, has_arrivals=True)
    assert spare_of(timing, has_arrivals=True) > begun_s - LEAST_SPARE_S


class Arrivals(ManualClock):
    """A clock at whose times commands come, as from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[float, Command]] = []
        self.send: Callable[[Command], None] = lambda command: None

    def advance(self, seconds: float) -> None:
        self.wait(threading.Event(), seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Advances until the event is set, at most."""
        end_s = self.now_s() + seconds
        while not event.is_set() and self.commands and self.commands[0][0] <= end_s:
            at_s, command = self.commands.pop(0)
            super().advance(max(0.0, at_s - self.now_s()))
            self.send(command)
        if not event.is_set():
            super().advance(max(0.0, end_s - self.now_s()))
        return event.is_set()


@dataclass(frozen=True)
class DueIteration(LateIteration):
    clock: ManualClock
    due_s: float

    def is_done(self) -> bool:
        return self.clock.now_s() >= self.due_s


class TimedDevice(ToyExecutor):
    """STEP_S an iteration and some for each token, more or less by SPREAD, from the end of the one before."""

    def __init__(self, clock: ManualClock, chance: random.Random) -> None:
        super().__init__(4000, 4, 1000)
        self._clock, self._chance = clock, chance
        self._free_s = 0.0
        self.gaps_s: list[float] = []
        self.began_s: dict[int, float] = {}  # by sequence
        self.ends_s: list[tuple[float, float]] = []
        self._due_s: dict[int, float] = {}

    def launch(self, plan: IterationPlan) -> DueIteration:
        plan = self.expand(plan)
        begun_s = self._clock.now_s()
        starts = any(item.sequence_id not in self.began_s for item in plan.scheduled)
        self._clock.advance(STARTING_S if starts else LAUNCH_S)
        start_s = max(self._free_s, self._clock.now_s())
        self.gaps_s.append(start_s - self._free_s)
        step_s = STEP_S + 1e-5 * plan.num_scheduled_tokens
        self._free_s = start_s + step_s * self._chance.uniform(1 - SPREAD, 1 + SPREAD)
        self.ends_s.append((begun_s, self._free_s))
        self._due_s[id(plan)] = self._free_s
        for item in plan.scheduled:
            self.began_s.setdefault(item.sequence_id, begun_s)
        return DueIteration(self, plan, self._clock, self._free_s)

    def execute(self, plan: IterationPlan) -> IterationResult:
        self._clock.advance(max(0.0, self._due_s.pop(id(plan)) - self._clock.now_s()))
        return super().execute(plan)


@pytest.mark.parametrize("seed", range(examples(3)))
def test_who_arrives_while_an_iteration_runs_is_in_the_next_one_and_the_device_does_not_wait(seed: int):
    chance, clock = random.Random(seed), Arrivals()
    device = TimedDevice(clock, chance)
    harness = Harness(4000, max_num_seqs=64, max_num_batched_tokens=256, executor=device, clock=clock, overlap=True)

    def wait(event: threading.Event, seconds: float) -> bool:
        assert not harness.engine.requests.events.take(), "what has happened is told before"
        return clock.wait(event, seconds)

    loop = EngineLoop(harness.engine, clock, lambda events: None, lambda fault: None, wait)
    clock.send = loop.send
    at_s = 0.0
    for number in range(160):
        prompt = tuple(chance.randrange(3, 900) for _ in range(chance.randint(4, 60)))
        request = harness.request(prompt, 600 if number == 0 else chance.randint(1, 30))
        clock.commands.append((at_s, Submit(request)))
        at_s += chance.expovariate(100.0)
    arrivals_s = [arrival_s for arrival_s, _ in clock.commands]
    clock.advance(0.0)
    while clock.commands or harness.engine.has_work:
        assert harness.engine.has_work or loop.num_queued().requests, "one request lives as long as others come"
        loop._iterate()

    # By then everything is learnt.
    ends_s = [(begun_s, end_s) for begun_s, end_s in device.ends_s if begun_s > 0.5]
    busy_s = ends_s[-1][1] - ends_s[0][1]
    assert sum(device.gaps_s[-len(ends_s) :]) < 0.005 * busy_s
    for sequence_id, arrival_s in enumerate(arrivals_s):
        if arrival_s <= 0.5:
            continue
        # The iteration that ran at the arrival, and when the one behind it was launched.
        launched_s = next(begun_s for begun_s, _ in ends_s if begun_s >= arrival_s)
        assert device.began_s[sequence_id] == launched_s
    assert set(arrivals_s) & set(device.began_s.values()), "who arrives late in an iteration is launched at once"
    waits_s = [end_s - begun_s for (begun_s, _), (_, end_s) in zip(ends_s[1:], ends_s, strict=False)]
    assert sorted(waits_s)[len(waits_s) // 2] < LAUNCH_S + 0.2 * STEP_S


class Foretold(IterationTime):
    """Always predicts the same."""

    def __init__(self, predicted_s: float) -> None:
        super().__init__()
        self._always_s = predicted_s

    def observe(self, workload: Workload, seconds: float, *, is_decode: bool) -> None:
        pass

    def predicted_s(self, work: Workload) -> float:
        return self._always_s


def looks_and_launches(commands: list[tuple[float, Command]], *, overlap: bool = True) -> tuple[int, list[float]]:
    """How often the loop waited for a launch to be due, and when each began, with a request of 200 tokens."""
    clock = Arrivals()
    device = TimedDevice(clock, random.Random(0))
    harness = Harness(4000, max_num_batched_tokens=256, executor=device, clock=clock, overlap=overlap)
    harness.cost.iteration_time = Foretold(STEP_S)
    num_looks = 0

    def wait(event: threading.Event, seconds: float) -> bool:
        nonlocal num_looks
        num_looks += 1
        return clock.wait(event, seconds)

    loop = EngineLoop(harness.engine, clock, lambda events: None, lambda fault: None, wait)
    clock.send, clock.commands = loop.send, [(0.0, Submit(harness.request((1, 2, 3), 200))), *commands]
    clock.advance(0.0)
    while harness.engine.has_work or loop.num_queued().requests:
        loop._iterate()
    return num_looks, [begun_s for begun_s, _ in device.ends_s]


def test_commands_that_start_nobody_do_not_hasten_a_launch():
    aborts: list[tuple[float, Command]] = [(1e-3 * number, Abort("nobody")) for number in range(300)]
    num_looks, begun_s = looks_and_launches([])
    more_looks, same_s = looks_and_launches(aborts)
    assert same_s == pytest.approx(begun_s)
    assert num_looks < more_looks <= num_looks + len(aborts), "one look for each"


def test_without_overlap_nothing_is_delayed():
    assert looks_and_launches([], overlap=False)[0] == 0


def test_where_predictions_are_far_off_the_device_waits_for_one_look_and_then_no_more():
    clock = Arrivals()
    device = TimedDevice(clock, random.Random(0))
    harness = Harness(4000, max_num_batched_tokens=256, executor=device, clock=clock, overlap=True)
    harness.cost.iteration_time = Foretold(20 * STEP_S)
    slept_s: list[float] = []

    def wait(event: threading.Event, seconds: float) -> bool:
        slept_s.append(seconds)
        return clock.wait(event, seconds)

    loop = EngineLoop(harness.engine, clock, lambda events: None, lambda fault: None, wait)
    loop.send(Submit(harness.request((1, 2, 3), 200)))
    while harness.engine.has_work or loop.num_queued().requests:
        loop._iterate()
    gaps_s = device.gaps_s[1:]
    assert len(slept_s) > 200
    waited_s = sum(stats.wait_s for stats in harness.sink.iterations)
    assert sum(slept_s) < waited_s < clock.now_s(), "time that passes before a launch is waited for the device"
    assert 0 < max(gaps_s) <= LOOK_EVERY_S + LAUNCH_S
    assert sum(gaps_s[10:]) < 0.01 * clock.now_s()


def test_an_iteration_whose_launch_was_not_delayed_says_nothing_of_how_early_it_ended():
    timing = LaunchTiming()
    seen(timing, STEP_S)
    usual_s = spare_of(timing)
    for _ in range(5):
        assert spare_of(timing, now_s=2 * STEP_S) == 0.0
        timing.launches(2 * STEP_S, has_arrivals=False)
        timing.launched()
        timing.ended(0.5 * STEP_S, is_exact=False)
    assert spare_of(timing) == pytest.approx(usual_s, rel=0.01)
