"""The modelled device, its layers divided into stages that compute one iteration at a time each (ORCA, section 4.1).

A stage takes its share of the iteration's seconds. Passing results to the next stage takes `_HOP_S` plus the time for
Llama-8B's hidden states over PCIe, at the measured rate of swapping. Not included: host time, and control messages
(ORCA sends these apart from the tensors, FasterTransformer does not; that is what ORCA's figure 9c shows).
"""

from dataclasses import dataclass

from loadtest.baselines.modelled_device import DRAWN_TOKEN_ID, SWAP_BYTES_PER_S, iteration_s
from loadtest.offline.work_clock import WorkClock
from service.core.iteration import IterationPlan, IterationResult

_HOP_S = 20e-6
_HIDDEN_BYTES = 4096 * 2


class ModelledPipeline:
    """The engine's Executor. An iteration starts at its launch or when the first stage is free. Time passes when it is
    waited for. Plans with transfers or trainings are not supported."""

    def __init__(self, num_stages: int) -> None:
        self._now_s = 0.0
        self._free_s = [0.0] * num_stages

    def clock(self) -> WorkClock:
        """A clock that this pipeline's work advances."""
        return WorkClock(lambda: self._now_s)

    def launch(self, plan: IterationPlan) -> "_Pending":
        """See `service/engine/ports.py`."""
        assert not plan.transfers and plan.training is None
        if not plan.computes:
            return _Pending(self, plan, self._now_s)
        stage_s = iteration_s(plan) / len(self._free_s)
        hop_s = _HOP_S + plan.num_scheduled_tokens * _HIDDEN_BYTES / SWAP_BYTES_PER_S
        reached_s = self._now_s
        for stage, free_s in enumerate(self._free_s):
            reached_s = max(reached_s + (hop_s if stage else 0.0), free_s) + stage_s
            self._free_s[stage] = reached_s
        return _Pending(self, plan, reached_s)

    def has_reached(self, at_s: float) -> bool:
        return self._now_s >= at_s

    def wait_until(self, at_s: float) -> None:
        """Let time pass until then."""
        self._now_s = max(self._now_s, at_s)


@dataclass(slots=True)
class _Pending:
    pipeline: ModelledPipeline
    plan: IterationPlan
    end_s: float

    def is_done(self) -> bool:
        return self.pipeline.has_reached(self.end_s)

    def wait(self) -> IterationResult:
        self.pipeline.wait_until(self.end_s)
        return IterationResult((DRAWN_TOKEN_ID,) * self.plan.num_draws)
