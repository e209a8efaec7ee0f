"""A StatsSink that keeps what the engine reports of its iterations, for measurements."""

from service.core.events import Outcome
from service.core.request import FinishReason
from service.core.stats import IterationStats, RequestStats, TrainingStats


class IterationLog:
    """Keeps all reported facts, in order."""

    def __init__(self) -> None:
        self.iterations: list[IterationStats] = []
        self.trainings: list[TrainingStats] = []

    def record_iteration(self, stats: IterationStats) -> None:
        """See `service/engine/ports.py`."""
        self.iterations.append(stats)

    def record_training(self, stats: TrainingStats) -> None:
        """Likewise."""
        self.trainings.append(stats)

    def record_commands(self, seconds: float) -> None:
        pass

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        """See `service/engine/ports.py`. Ignored: the final event has the same facts."""
