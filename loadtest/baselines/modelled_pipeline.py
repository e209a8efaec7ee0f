"""The modelled device cut by layers into stages, each of which computes one iteration at a time (ORCA, section 4.1).

A stage takes its share of the iteration's seconds, and what it hands on crosses to the next: `_HOP_S`, and Llama-8B's
hidden states over PCIe at what swapping was measured to reach. The host's time is not in it, neither is what control
messages cost (ORCA sends them apart from the tensors; FasterTransformer does not, which its figure 9c is about).
"""

from dataclasses import dataclass

from loadtest.baselines.modelled_device import DRAWN_TOKEN_ID, SWAP_BYTES_PER_S, iteration_s
from loadtest.offline.work_clock import WorkClock
from service.core.iteration import IterationPlan, IterationResult

_HOP_S = 20e-6
_HIDDEN_BYTES = 4096 * 2


class ModelledPipeline:
    """The engine's Executor. An iteration begins when it is launched, or when the first stage is free. It ends when it
    is waited for: time passes until then. Plans with transfers or trainings it does not take."""

    def __init__(self, num_stages: int) -> None:
        self._now_s = 0.0
        self._free_s = [0.0] * num_stages

    def clock(self) -> WorkClock:
        """A clock that this pipeline's work moves."""
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
        """Lets time pass."""
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
