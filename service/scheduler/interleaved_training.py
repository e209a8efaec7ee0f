"""Layer steps of a training between the iterations of requests, as far as time is left (FlexLLM, NSDI '26)."""

from __future__ import annotations

from service.core.iteration import IterationPlan
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload


class InterleavedTraining:
    """No request is deferred. The training gets what an iteration is predicted to leave of the inter-token target."""

    def __init__(self, iteration_time: IterationTime, target_s: float) -> None:
        self._iteration_time = iteration_time
        self._target_s = target_s

    def admits(self, waited_s: float, step_s: float) -> bool:
        return True

    def slack_s(self, plan: IterationPlan) -> float:
        predicted_s = self._iteration_time.predicted_s(Workload.of(plan, self._iteration_time.heat.level))
        return 0.0 if predicted_s is None else max(0.0, self._target_s - predicted_s)
