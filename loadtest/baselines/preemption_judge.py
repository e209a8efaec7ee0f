"""Quality and cost of AdaptiveLLM's predictions, measured beside what they predict (sections 4.5 and 4.6)."""

import random
import time
from collections.abc import Sequence
from statistics import fmean

from loadtest.baselines.engine_system import unfitted_cost
from loadtest.baselines.kv_pool import KvPool
from service.core.block_moves import Transfer
from service.core.iteration import IterationPlan, IterationResult
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.prediction.calibration import calibrate
from service.prediction.execution_time import ExecutionTime
from service.prediction.iteration_time import IterationTime, PaddedSize
from service.prediction.preemption_cost import PreemptionCost, RecoveryCosts
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.transfer_calibration import calibrate_transfers
from service.prediction.workload import Workload

_SEQUENCE_ID = -3
_ROW = 1
_TRANSFER_ID = -3
_PARAMS = SamplingParams(max_tokens=1)
_NUM_MEANWHILE = 10
_SEED = 0

Timing = tuple[Workload, float]
"""What an iteration computed, and its seconds."""


def fitted_cost(pool: KvPool, iteration_time: IterationTime | None = None) -> PreemptionCost:
    """The predictors, fitted as at the service's start-up. Call it inside `pool.clock.working()`. Overwrites the pool's
    blocks. iteration_time: the predictor to fit; None: a new one."""
    cost = unfitted_cost(pool)
    cost.iteration_time = iteration_time or cost.iteration_time

    def execute(plan: IterationPlan) -> IterationResult:
        return pool.executor.launch(plan).wait()

    num_blocks, num_host_blocks = pool.num_blocks, pool.num_host_blocks
    calibrate_transfers(execute, cost.swap_time, pool.clock, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    calibrate(
        execute,
        cost.iteration_time,
        pool.clock,
        num_blocks=num_blocks,
        block_size=pool.block_size,
        max_tokens=pool.max_num_batched_tokens,
        max_model_len=pool.max_model_len,
        max_num_seqs=pool.max_num_seqs,
        vocab_size=pool.vocab_size,
    )
    return cost


def held_out_error(timings: Sequence[Timing], padded_size: PaddedSize | None) -> float:
    """The paper's test (section 4.5): fit a predictor to a random four fifths of the timings. Returns its mean absolute
    error on the others, in percent of the measured time."""
    shuffled = random.Random(_SEED).sample(timings, len(timings))
    num_fitted = len(shuffled) * 4 // 5
    iteration_time = IterationTime(padded_size)
    for workload, seconds in shuffled[:num_fitted]:
        iteration_time.calibrate(workload, seconds)
    iteration_time.fit()
    held_out = shuffled[num_fitted:]
    return 100 * fmean(abs((iteration_time.predicted_s(w) or 0.0) - seconds) / seconds for w, seconds in held_out)


class TimedLedger(RecoveryLedger):
    """The ledger, which also records host seconds spent on predicting and learning, and every iteration's time."""

    def __init__(self, cost: PreemptionCost) -> None:
        super().__init__(cost)
        self.seconds = 0.0
        self.timings: list[Timing] = []

    def predict(self, num_tokens: int, num_kept: int, num_blocks: int) -> RecoveryCosts:
        """See `service/prediction/recovery_ledger.py`."""
        began = time.perf_counter()
        costs = super().predict(num_tokens, num_kept, num_blocks)
        self.seconds += time.perf_counter() - began
        return costs

    def executed(self, plan: IterationPlan, took: ExecutionTime) -> None:
        """See `service/prediction/recovery_ledger.py`."""
        began = time.perf_counter()
        heat = self._cost.iteration_time.heat.level
        super().executed(plan, took)
        self.seconds += time.perf_counter() - began
        if plan.computes:
            self.timings.append((Workload.of(plan, heat), took.seconds))


def recompute_seconds(pool: KvPool, num_tokens: int) -> float:
    """Measured seconds to recompute `num_tokens` of one sequence, in chunks of the token budget. Ids are random: with
    one id for all, a GPU draws less power and is faster.

    Call it inside `pool.clock.working()`, like `swap_seconds`; both use the device's clock if it has one.
    """
    seconds = 0.0
    token_ids = _drawn_ids(pool, num_tokens)
    for start in range(0, num_tokens, pool.max_num_batched_tokens):
        end = min(num_tokens, start + pool.max_num_batched_tokens)
        first, last = -(-start // pool.block_size), -(-end // pool.block_size)
        block_ids = tuple(range(first, last))
        samples = (Sample(_SEQUENCE_ID, 0),) if end == num_tokens else ()
        chunk = ScheduledSequence(_SEQUENCE_ID, _ROW, token_ids[start:end], start, first, block_ids, _PARAMS, samples)
        seconds += _seconds(pool, IterationPlan((chunk,)))
    pool.executor.launch(IterationPlan((), released=(_ROW,))).wait()
    return seconds


def recompute_beside_seconds(pool: KvPool, num_tokens: int, num_decodes: int) -> float:
    """Measured seconds by which recomputing `num_tokens` prolongs an iteration of `num_decodes` decodes: the cost of
    recomputing in a batch. The tokens must fit in the first half of the pool; decodes are in the second."""
    decodes = _decodes(pool, num_decodes)
    block_ids = tuple(range(-(-num_tokens // pool.block_size)))
    token_ids = _drawn_ids(pool, num_tokens)
    chunk = ScheduledSequence(_SEQUENCE_ID, _ROW, token_ids, 0, 0, block_ids, _PARAMS, (Sample(_SEQUENCE_ID, 0),))
    seconds = [_seconds(pool, plan) for plan in (IterationPlan(decodes), IterationPlan((*decodes, chunk)))]
    released = tuple(item.row for item in (*decodes, chunk))
    pool.executor.launch(IterationPlan((), released=released)).wait()
    return seconds[1] - seconds[0]


def decode_meanwhile(pool: KvPool, num_decodes: int) -> None:
    """Run some iterations of `num_decodes` decodes, as between two preemptions: a GPU's clock rate depends on what it
    computed in the last tenth of a second."""
    decodes = _decodes(pool, num_decodes)
    for _ in range(_NUM_MEANWHILE):
        pool.executor.launch(IterationPlan(decodes)).wait()
    pool.executor.launch(IterationPlan((), released=tuple(item.row for item in decodes))).wait()


def swap_seconds(pool: KvPool, num_blocks: int, num_decodes: int) -> tuple[float, float]:
    """Measured seconds to copy `num_blocks` scattered blocks to the host, and back; each while an iteration of
    `num_decodes` decodes runs, as when others go on during a preemption."""
    device, host = (tuple(range(0, n, n // num_blocks))[:num_blocks] for n in (pool.num_blocks, pool.num_host_blocks))
    decodes = _decodes(pool, num_decodes)
    pool.executor.launch(IterationPlan(decodes)).wait()
    out_s, in_s = (_moved_s(pool, Transfer(_TRANSFER_ID, to_host, device, host), decodes) for to_host in (True, False))
    pool.executor.launch(IterationPlan((), released=tuple(item.row for item in decodes))).wait()
    return out_s, in_s


def _decodes(pool: KvPool, num_decodes: int) -> tuple[ScheduledSequence, ...]:
    """Decodes of sequences with one full block each, from the middle of the pool on."""
    first = pool.num_blocks // 2
    token_ids = _drawn_ids(pool, num_decodes)
    return tuple(
        ScheduledSequence(
            _SEQUENCE_ID - 1 - i,
            _ROW + 1 + i,
            (token_ids[i],),
            pool.block_size - 1,
            0,
            (first + i,),
            _PARAMS,
            (Sample(_SEQUENCE_ID - 1 - i, 0),),
        )
        for i in range(num_decodes)
    )


def _drawn_ids(pool: KvPool, count: int) -> tuple[int, ...]:
    return tuple(random.Random(_SEED).choices(range(pool.vocab_size), k=count))


def _moved_s(pool: KvPool, transfer: Transfer, decodes: tuple[ScheduledSequence, ...]) -> float:
    result = pool.executor.launch(IterationPlan(decodes, transfers=(transfer,))).wait()
    finished = result.finished_transfers
    while not finished:
        finished = pool.executor.launch(IterationPlan((), awaits_transfer=True)).wait().finished_transfers
    return finished[0].seconds or 0.0


def _seconds(pool: KvPool, plan: IterationPlan) -> float:
    began_s = pool.clock.now_s()
    compute_s = pool.executor.launch(plan).wait().compute_s
    return pool.clock.now_s() - began_s if compute_s is None else compute_s
