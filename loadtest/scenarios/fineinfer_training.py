"""A training beside requests at a Poisson rate; used by fineinfer_deferral.py and fineinfer_coserving.py."""

from dataclasses import dataclass

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_training import TOKENS_PER_ITERATION
from loadtest.offline.figures_of_merit import mean_normalized_latency_s, percentile
from loadtest.offline.replay import replay
from loadtest.offline.work_clock import WorkClock
from loadtest.scenarios.stage import LOADED_TOKENS, Stage
from service.core.training import StepReport
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.chunk_budget import ChunkBudget
from service.scheduler.deferred_batching import TrainingPolicy

ENDLESS = 10_000_000
"""Fine-tuning iterations."""

_LEAST_REQUESTS = 8
_ITERATIONS_ALONE = 8
_MODELLED_FACTOR = 20.0
_REAL_FACTOR = 4.0
"""Duration of each rate, as a multiple of the form's `sweep_s`."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Requests beside a training. Times in seconds. training_rate: tokens/s over the job's time; 0 without a job.
    num_deferred: requests that waited because of the deferral bound."""

    rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    normalized_s: float
    training_rate: float
    num_requests: int
    num_deferred: int


class JobClock:
    """A TrainingListener that records when the job ended."""

    def __init__(self, clock: WorkClock) -> None:
        self._clock = clock
        self.ended_s: float | None = None

    def step(self, report: StepReport) -> None:
        """See `service/core/training.py`."""

    def snapshot(self, state: object) -> None:
        """See `service/core/training.py`."""

    def ended(self, fault: Exception | None) -> None:
        """Raises RuntimeError if the job failed."""
        self.ended_s = self._clock.now_s()
        if fault is not None:
            raise RuntimeError("the job has failed") from fault


def seconds_of(stage: Stage) -> float:
    """How long each rate lasts."""
    return stage.form.sweep_s * (_MODELLED_FACTOR if stage.form.models_policies else _REAL_FACTOR)


def training_pool(stage: Stage) -> KvPool:
    """Has room for any batch size that occurs, and for a training."""
    return stage.pool(LOADED_TOKENS)


def run_beside(
    stage: Stage,
    pool: KvPool,
    workload: str,
    rate: float,
    policy: TrainingPolicy,
    *,
    num_iterations: int = ENDLESS,
    ledger: RecoveryLedger | None = None,
    chunk_budget: ChunkBudget | None = None,
) -> Beside:
    """One replay. num_iterations: of the job; 0: no job."""
    policies = EnginePolicies(on_demand(pool), ledger=ledger, training=policy, chunk_budget=chunk_budget)
    system, listener = EngineSystem("beside a training", pool, policies), JobClock(pool.clock)
    if num_iterations:
        system.start_training(stage.new_training(num_iterations), listener)
    num_requests = max(_LEAST_REQUESTS, round(rate * seconds_of(stage)))
    began_s = pool.clock.now_s()
    outcome = replay(system, stage.trace(workload, num_requests, rate))
    lasted_s = (listener.ended_s or pool.clock.now_s()) - began_s
    done = outcome.completions
    firsts = [one.time_to_first_token_s for one in done]
    num_steps = sum(stats.num_layer_steps for stats in system.log.trainings)
    per_iteration = stage.new_training(1).layer_steps_per_iteration if num_iterations else 1
    deferrals = [deferral for stats in system.log.iterations for deferral in stats.deferrals]
    return Beside(
        rate,
        percentile(firsts, 0.5),
        percentile(firsts, 0.99),
        percentile([one.time_per_output_token_s for one in done], 0.99),
        mean_normalized_latency_s(outcome),
        num_steps / per_iteration * TOKENS_PER_ITERATION / lasted_s,
        len(done),
        sum(deferral.cause == "bound" for deferral in deferrals),
    )


def alone_rate(stage: Stage, pool: KvPool) -> float:
    """Tokens per second of a job without any requests, and without its first iteration, which compiles kernels."""

    def seconds(num_iterations: int) -> float:
        system = EngineSystem("a training alone", pool, EnginePolicies(on_demand(pool)))
        began_s = pool.clock.now_s()
        system.train_alone(stage.new_training(num_iterations), JobClock(pool.clock))
        return pool.clock.now_s() - began_s

    seconds(1)
    return _ITERATIONS_ALONE * TOKENS_PER_ITERATION / seconds(_ITERATIONS_ALONE)
