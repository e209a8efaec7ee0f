"""What the engine needs from outside, as Protocols. `composition` passes in the real ones, tests scripted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.core.events import Outcome
from service.core.iteration import IterationPlan, IterationResult
from service.core.request import FinishReason
from service.core.stats import IterationStats, RequestStats, TrainingStats
from service.core.training import Training


class PendingIteration(Protocol):
    """An iteration that was launched."""

    def is_done(self) -> bool:
        """Whether it is computed or has failed, so that `wait` returns almost at once. Never blocks, never raises."""
        ...

    def wait(self) -> IterationResult:
        """Block until the result is there and return it; raise if the iteration failed. Called once per iteration, in
        launch order. Releases the interpreter meanwhile."""
        ...


class Executor(Protocol):
    """Executes plans in launch order. Engine thread only.

    An exception from `launch` or `wait` is a fault of the whole iteration, not of one request. Transfers under way at
    that time must have ended, in success or not; no later result reports them.
    """

    def launch(self, plan: IterationPlan) -> PendingIteration:
        """Start the plan, after those launched before. May be called again before the first one was waited for."""
        ...


class TrainingExecutor(Protocol):
    """Runs the layer steps of trainings that plans have shares of. Engine thread only; `remove_training` and
    `training_state` only while no iteration is in flight, or after the executor has failed."""

    def add_training(self, training: Training) -> int:
        """From now on plans may have shares of it. Returns how many contiguous KV blocks it needs while it computes."""
        ...

    def remove_training(self, training_id: int) -> None:
        """No later plan has a share of it. An unknown id is ignored."""
        ...

    def training_state(self, training_id: int) -> object:
        """`Training.state` of an added training."""
        ...


class IdleWork(Protocol):
    """Preparation that can wait until there is nothing to compute (capturing CUDA graphs, for example). Engine thread;
    must not raise."""

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        """Do one piece of work, the most useful one; returns whether more is left. No iteration is in flight.

        must_give_up: polled every few milliseconds; once true, the piece is dropped, to be done again later. None: the
        piece is always completed.
        """
        ...

    def is_missed(self) -> bool:
        """Whether the last iterations would have been faster with a piece that is not done yet, so that it is worth
        delaying the next ones for it."""
        ...

    def is_urgent(self) -> bool:
        """Whether most of them would have been much faster, so that pieces should follow each other quickly."""
        ...


class NoIdleWork:
    """Null object: everything was prepared at start."""

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        return False

    def is_missed(self) -> bool:
        return False

    def is_urgent(self) -> bool:
        return False


class StatsSink(Protocol):
    """Receives statistics. Engine thread; must be quick and must not raise."""

    def record_iteration(self, stats: IterationStats) -> None:
        """An iteration was applied. Failed iterations are not recorded."""
        ...

    def record_training(self, stats: TrainingStats) -> None:
        """Layer steps of a training were done."""
        ...

    def record_commands(self, seconds: float) -> None:
        """Between two iterations, adding and removing requests took so many seconds."""
        ...

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        """A request has ended; called once per request. finish_reasons: those of its choices that finished."""
        ...
