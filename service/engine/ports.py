"""What the engine needs from outside, as Protocols; `composition` hands in the real ones, tests scripted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.core.events import Outcome
from service.core.iteration import IterationPlan, IterationResult
from service.core.request import FinishReason
from service.core.stats import IterationStats, RequestStats, TrainingStats
from service.core.training import Training


class PendingIteration(Protocol):
    """An iteration that the executor has begun."""

    def is_done(self) -> bool:
        """Whether it is computed, or has failed, so that `wait` takes next to no time. Never waits and never raises."""
        ...

    def wait(self) -> IterationResult:
        """Wait for the result and return it; raises if the iteration failed. Called once, in the order of launches.
        Other threads run meanwhile."""
        ...


class Executor(Protocol):
    """Carries out plans, in the order of their launches. Called from the engine thread only.

    An exception from `launch` or `wait` is a fault of that whole iteration, not of one request. Transfers that were
    under way then have ended one way or another; no result tells of them.
    """

    def launch(self, plan: IterationPlan) -> PendingIteration:
        """Begin the plan, after those before it. A second may be launched before the first has been waited for."""
        ...


class TrainingExecutor(Protocol):
    """Carries on the trainings that plans have shares of. Called from the engine thread only, and for `remove_training`
    and `training_state` while no iteration runs, or the executor has failed."""

    def add_training(self, training: Training) -> int:
        """Plans may have shares of it from now on. Returns how many KV blocks it needs, neighbours, whenever it
        computes."""
        ...

    def remove_training(self, training_id: int) -> None:
        """None will any more. One that is not there is no fault."""
        ...

    def training_state(self, training_id: int) -> object:
        """`Training.state` of one that is there."""
        ...


class IdleWork(Protocol):
    """Preparation that can wait until there is nothing to compute. Engine thread; must not raise."""

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        """Do one piece, the one that is missed most; returns whether there is more. Called while no iteration runs.

        must_give_up: asked every few milliseconds; once it is true the piece is dropped, to be done another time. None:
        the piece is done whoever comes.
        """
        ...

    def is_missed(self) -> bool:
        """Whether the last iterations would have gained by a piece, so that the next ones may wait for it."""
        ...

    def is_urgent(self) -> bool:
        """Whether most of them would have gained much, so that the next pieces are not to be far apart."""
        ...


class NoIdleWork:
    """Everything was prepared at start."""

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        return False

    def is_missed(self) -> bool:
        return False

    def is_urgent(self) -> bool:
        return False


class StatsSink(Protocol):
    """Receives facts. Called from the engine thread; must be quick and must not raise."""

    def record_iteration(self, stats: IterationStats) -> None:
        """An iteration was applied; those that fail are not told."""
        ...

    def record_training(self, stats: TrainingStats) -> None:
        """Layer steps of a training were done."""
        ...

    def record_commands(self, seconds: float) -> None:
        """Between two iterations, adding and removing requests took so long."""
        ...

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        """A request has ended, which is told once. finish_reasons: of those of its choices that finished."""
        ...
