"""A training whose layer steps take given seconds of a manual clock, with its executor and its listener."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.clock import Clock
from service.core.iteration import IterationPlan, IterationResult
from service.core.training import (
    StepReport,
    Training,
    TrainingNews,
    TrainingOutcome,
    TrainingShare,
)
from tests.engine.faulty_executor import FaultyExecutor
from tests.manual_clock import ManualClock


class ScriptedTraining:
    """Iterations of layer steps that take `step_s` seconds, each with an optimizer step at its end.

    fails_at: index of the layer step that raises. num_done: layer steps run. first_run_s: their seconds in the first
    iteration, if different.
    """

    num_arena_bytes = 0

    def __init__(
        self,
        clock: ManualClock,
        step_s: Sequence[float],
        num_iterations: int = 1_000_000,
        fails_at: int | None = None,
        training_id: int = 1,
        fails_in: str = "advance",
        first_run_s: Sequence[float] | None = None,
    ) -> None:
        self._clock = clock
        self._step_s = tuple(step_s)
        self._first_run_s = self._step_s if first_run_s is None else tuple(first_run_s)
        self._num_steps = len(self._step_s) * num_iterations
        self._fails_at = fails_at
        self._fails_in = fails_in
        self._told = 0
        self.training_id = training_id
        self.layer_steps_per_iteration = len(self._step_s)
        self.num_done = 0
        self.began_s: list[float] = []

    @property
    def is_over(self) -> bool:
        return self.num_done == self._num_steps and self._told == self.num_iterations_done

    @property
    def num_iterations_done(self) -> int:
        return self.num_done // len(self._step_s)

    @property
    def layer_steps_left(self) -> int:
        return 0 if self.num_done == self._num_steps else len(self._step_s) - self.num_done % len(self._step_s)

    def use_memory(self, memory: object) -> None:
        self.num_done -= self.num_done % len(self._step_s)

    def advance(self, num_layer_steps: int) -> int:
        num_steps = min(num_layer_steps, self._num_steps - self.num_done)
        for _ in range(num_steps):
            if self.num_done == self._fails_at and self._fails_in == "advance":
                raise FloatingPointError("the loss is not finite")
            self.began_s.append(self._clock.now_s())
            step_s = self._step_s if self.num_done >= len(self._step_s) else self._first_run_s
            self._clock.advance(step_s[self.num_done % len(step_s)])
            self.num_done += 1
        return num_steps

    def take_waited_s(self) -> float:
        return 0.0

    def take_news(self) -> TrainingNews:
        if self._fails_in == "take_news" and self._fails_at is not None and self.num_done > self._fails_at:
            raise FloatingPointError("the loss is not finite")
        told, self._told = self._told, self.num_iterations_done
        reports = tuple(StepReport(step + 1, 1.0, 0.5, 8, 1e-3, 1.0) for step in range(told, self._told))
        return TrainingNews(reports, self.state() if self.num_done == self._num_steps and reports else None)

    def state(self) -> object:
        if self._fails_in == "state":
            raise MemoryError("no room for a copy")
        return self.num_iterations_done


class ScriptedTrainings:
    """The engine's TrainingExecutor. Measures by the clock how long `execute` takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.live: dict[int, Training] = {}
        self._failed: set[int] = set()

    def add_training(self, training: Training) -> int:
        assert training.training_id not in self.live
        self.live[training.training_id] = training
        return 0

    def remove_training(self, training_id: int) -> None:
        self.live.pop(training_id, None)

    def training_state(self, training_id: int) -> object:
        return self.live[training_id].state()

    def execute(self, share: TrainingShare) -> TrainingOutcome:
        training, started_s = self.live.get(share.training_id), self._clock.now_s()
        if training is None or share.training_id in self._failed:
            return TrainingOutcome(share.training_id, 0, 0.0, 0)
        num_steps = 0
        try:
            num_steps = training.advance(share.num_layer_steps)
            news = training.take_news()
        except Exception as fault:
            self._failed.add(share.training_id)
            return TrainingOutcome(share.training_id, num_steps, self._clock.now_s() - started_s, 0, fault=fault)
        seconds = self._clock.now_s() - started_s
        left = training.layer_steps_left
        return TrainingOutcome(share.training_id, num_steps, seconds, left, news, training.is_over)


class TrainingToy(FaultyExecutor):
    """Runs a training between the requests' iterations, each of which takes `iteration_s` of the clock."""

    def __init__(
        self,
        clock: ManualClock,
        iteration_s: float = 0.01,
        failing_waits: frozenset[int] = frozenset(),
        failing_launches: frozenset[int] = frozenset(),
        num_blocks: int = 64,
    ) -> None:
        super().__init__(failing_waits, failing_launches=failing_launches, num_blocks=num_blocks)
        self._clock = clock
        self._iteration_s = iteration_s
        self.trainings = ScriptedTrainings(clock)

    def execute(self, plan: IterationPlan) -> IterationResult:
        result = super().execute(plan)
        if plan.training is not None:
            outcome = self.trainings.execute(plan.training)
            return IterationResult((), result.finished_transfers, training=outcome)
        self._clock.advance(self._iteration_s)
        return result


class NotingListener:
    """Records what it is told. fails: always raises instead."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reports: list[StepReport] = []
        self.snapshots: list[object] = []
        self.ends: list[Exception | None] = []
        self._fails = fails

    def step(self, report: StepReport) -> None:
        self._note()
        self.reports.append(report)

    def snapshot(self, state: object) -> None:
        self._note()
        self.snapshots.append(state)

    def ended(self, fault: Exception | None) -> None:
        self.ends.append(fault)
        self._note()

    def _note(self) -> None:
        if self._fails:
            raise RuntimeError("a listener should not")
