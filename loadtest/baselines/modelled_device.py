"""An executor that computes nothing, but takes the time that an H200 takes for the Llama-8B shape, by a formula.

Scheduler, admission, block pool and preemption are the real ones, so their decisions are exact; the times are as good
as the formula. Policies' figures can be drawn at full size on any machine, with the same result every time. Host time
is not included.

The formula comes from measurements on one H200, bf16 (2026-11-21): the GEMMs of one step with T tokens, in one CUDA
graph, `_GEMM`; reading keys and values, 31 ns per cached token; prefill attention, 490 TFLOP/s; swapping, 48 GB/s each
way on its own stream, one transfer after another, at any block size (2026-11-23). `_OTHER_S` is the rest of a step:
norms, sampling, launches.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.baselines.modelled_training import ModelledTime, ModelledTrainings
from loadtest.offline.work_clock import WorkClock
from service.core.block_moves import FinishedTransfer
from service.core.iteration import IterationPlan, IterationResult
from service.prediction.workload import num_attended_pairs

_GEMM = ((1, 3.99e-3), (8, 4.00e-3), (64, 4.25e-3), (128, 4.83e-3), (256, 7.24e-3), (512, 12.2e-3))
_OTHER_S = 0.5e-3
_CACHED_TOKEN_S = 31e-9
_PAIR_S = 4 * 32 * 128 * 32 / 490e12
_KV_TOKEN_BYTES = 131_072
SWAP_BYTES_PER_S = 48e9

DRAWN_TOKEN_ID = 2


def iteration_s(plan: IterationPlan) -> float:
    """Seconds of the plan's computation."""
    if not plan.computes:
        return 0.0
    decodes = plan.decodes
    num_read = int(decodes.num_computed_tokens.sum()) + decodes.num_tokens
    seconds = _OTHER_S + _gemm_s(plan.num_scheduled_tokens) + num_read * _CACHED_TOKEN_S
    for item in plan.scheduled:
        num_tokens = len(item.token_ids)
        seconds += (item.num_computed_tokens + num_tokens) * _CACHED_TOKEN_S
        if num_tokens > 1:
            seconds += num_attended_pairs(item.num_computed_tokens, num_tokens) * _PAIR_S
    return seconds


def swap_s(num_blocks: int, block_size: int) -> float:
    """Seconds of a transfer, one way."""
    return num_blocks * block_size * _KV_TOKEN_BYTES / SWAP_BYTES_PER_S


class ModelledDevice:
    """The engine's Executor. Time passes when an iteration is waited for. trainings: those that plans refer to.

    plan_s: seconds of a plan's computation; default: the H200's.
    """

    def __init__(self, block_size: int, plan_s: Callable[[IterationPlan], float] = iteration_s) -> None:
        self._time = ModelledTime()
        self._plan_s = plan_s
        self.trainings = ModelledTrainings(self._time)
        self._block_size = block_size
        self._transfers: list[tuple[float, FinishedTransfer]] = []
        self._stream_free_s = 0.0

    def clock(self) -> WorkClock:
        """A clock that this device's work advances."""
        return WorkClock(self._time.now_s)

    def launch(self, plan: IterationPlan) -> "_Pending":
        """See `service/engine/ports.py`."""
        return _Pending(self, plan)

    def run(self, plan: IterationPlan) -> IterationResult:
        """Let the plan's seconds pass."""
        for transfer in plan.transfers:
            seconds = swap_s(len(transfer.device_blocks), self._block_size)
            self._stream_free_s = max(self._stream_free_s, self._time.seconds) + seconds
            self._transfers.append((self._stream_free_s, FinishedTransfer(transfer.transfer_id, seconds)))
        outcome = None if plan.training is None else self.trainings.advance(plan.training)
        self._time.seconds += self._plan_s(plan)
        if plan.awaits_transfer and self._transfers:
            self._time.seconds = max(self._time.seconds, self._transfers[0][0])
        finished = tuple(transfer for end_s, transfer in self._transfers if end_s <= self._time.seconds)
        self._transfers = [transfer for transfer in self._transfers if transfer[0] > self._time.seconds]
        return IterationResult((DRAWN_TOKEN_ID,) * plan.num_draws, finished, training=outcome)


@dataclass(slots=True)
class _Pending:
    device: ModelledDevice
    plan: IterationPlan

    def is_done(self) -> bool:
        return False

    def wait(self) -> IterationResult:
        return self.device.run(self.plan)


def _gemm_s(num_tokens: int) -> float:
    """Linear between the measured points; beyond them with the last slope."""
    sizes = [size for size, _ in _GEMM]
    index = min(max(bisect.bisect_left(sizes, num_tokens), 1), len(_GEMM) - 1)
    (low, low_s), (high, high_s) = _GEMM[index - 1], _GEMM[index]
    return low_s + (num_tokens - low) * (high_s - low_s) / (high - low)
