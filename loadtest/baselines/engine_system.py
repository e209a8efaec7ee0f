"""Headrace's own engine as a compared system: policies are arguments, everything else is as when serving."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.baselines.iteration_log import IterationLog
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.planned_ends import END_TOKEN_ID, PlannedEnds
from loadtest.offline.serving_system import Completion, IterationFacts, MemoryUse, OfflineRequest
from service.core.events import FinalEvent, Outcome
from service.core.iteration import IterationPlan
from service.core.request import Request
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.sequence_group import SequenceGroup
from service.core.stats import RequestStats
from service.core.training import Training, TrainingListener
from service.engine.engine import Engine
from service.engine.outbox import one_by_one
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.kvcache.swap_space import SwapSpace
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.scheduler.admission import Admission, OnDemandAdmission, fits_ever
from service.scheduler.cached_tokens import num_cached_tokens
from service.scheduler.chunk_budget import ChunkBudget, FixedBudget
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.memory_forecast import ReserveAdmission
from service.scheduler.memory_need import num_blocks_at_most
from service.scheduler.preemption import AlwaysRecompute, Preemption
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.scheduler.scheduling_policy import SchedulingPolicy

MAX_PREEMPTIONS = 8
"""The service's default."""

KnownLimit = Callable[[int], int]
"""(an answer's real length) -> the output limit that the system is told: the same or more."""


def exact_limit(output_len: int) -> int:
    """The real length: "Orca (Oracle)" of PagedAttention, section 6.1; every system in ORCA's own evaluation."""
    return output_len


def power_of_two_limit(output_len: int) -> int:
    """Rounded up to a power of two, so less than twice too much: "Orca (Pow2)"."""
    return 1 << (output_len - 1).bit_length()


def constant_limit(num_tokens: int) -> KnownLimit:
    """Always the maximum: "Orca (Max)", FineInfer's SimpleReqManager, and clients that do not know better."""
    return lambda output_len: num_tokens


def first_come_first_served(swap_space: SwapSpace) -> SchedulingPolicy:
    """The policy of all systems but those whose policy is compared."""
    return FirstComeFirstServed()


@dataclass(frozen=True, slots=True)
class EnginePolicies:
    """What distinguishes one system of this engine from another.

    max_num_seqs: lower than the executor's; None: the executor's.
    ledger: the ledger of predictions; None: one that has learned nothing yet.
    held_tokens: KV tokens that the running requests hold; None: counts allocated blocks.
    training: when a training may run. chunk_budget: None: a chunk may take the whole token budget.
    """

    admission: Admission
    known_limit: KnownLimit = exact_limit
    scheduling: Callable[[SwapSpace], SchedulingPolicy] = first_come_first_served
    preemption: Preemption = field(default_factory=AlwaysRecompute)
    ledger: RecoveryLedger | None = None
    prefix_caching: bool = False
    max_num_seqs: int | None = None
    temperature: float = 0.0
    held_tokens: Callable[[Sequence[SequenceGroup]], int] | None = None
    training: TrainingPolicy = field(default_factory=lambda: DeferredBatching(0.0))
    chunk_budget: ChunkBudget | None = None


class EngineSystem:
    """A `ServingSystem`. The pool's executor must have no live sequence when it is made. `close` leaves none."""

    def __init__(self, name: str, pool: KvPool, policies: EnginePolicies) -> None:
        self.name = name
        self.clock = pool.clock
        self.log = IterationLog()
        self._pool = pool
        self._policies = policies
        self._max_num_seqs = policies.max_num_seqs or pool.max_num_seqs
        self._executor = PlannedEnds(pool.executor)
        cache = ChainedPrefixCache(pool.block_size) if policies.prefix_caching else NoPrefixCache()
        self._blocks = BlockManager(pool.num_blocks, pool.block_size, cache, pool.num_host_blocks, window=pool.window)
        self._scheduler = IterationScheduler(
            self._blocks,
            SchedulerPolicies(
                policies.scheduling(self._blocks.swap_space),
                policies.admission,
                policies.preemption,
                policies.chunk_budget or FixedBudget(pool.max_num_batched_tokens),
                policies.training,
            ),
            policies.ledger or RecoveryLedger(unfitted_cost(pool)),
            History(),
            pool.clock,
            max_num_seqs=self._max_num_seqs,
            max_preemptions=MAX_PREEMPTIONS,
            num_lanes=pool.num_lanes,
            versions=pool.versions,
        )
        self._engine = Engine(
            self._scheduler, self._executor, self.log, pool.clock, overlap=pool.overlap, trainings=pool.trainings
        )
        self._training_id: int | None = None
        self._completions: list[Completion] = []
        self._num_sequences = 0
        self._batch_size = 0

    @property
    def has_work(self) -> bool:
        """See `ServingSystem`."""
        return self._engine.has_work

    @property
    def num_running(self) -> int:
        """Requests that have started and not yet ended."""
        return len(self._scheduler.pool.running)

    def submit(self, request: OfflineRequest) -> None:
        """See `ServingSystem`. Raises ValueError for a request that could never run."""
        num_prompt = len(request.prompt_token_ids)
        limit = max(request.output_len, self._policies.known_limit(request.output_len))
        sampling = self._sampling(request, limit)
        if sampling.beam is None:
            for choice in range(request.n):
                self._executor.plan_end(self._num_sequences + choice, num_prompt + request.output_len)
        self._num_sequences += sampling.num_sequences
        made = Request(str(request.request_id), request.prompt_token_ids, sampling, request.arrival_s)
        if not fits_ever(made, self._blocks, self._max_num_seqs):
            raise ValueError(f"{self.name}: request {request.request_id} of {num_prompt} + {limit} tokens never fits")
        self._engine.requests.add(made)

    def start_training(self, training: Training, listener: TrainingListener) -> None:
        """Run it beside the requests, until `close`."""
        self._training_id = training.training_id
        self._engine.training.start(training, listener)

    def train_alone(self, training: Training, listener: TrainingListener) -> None:
        """Run it to its end, without requests."""
        self._engine.training.start(training, listener)
        with self.clock.working():
            while self._engine.has_work:
                self._engine.step()

    def step(self) -> None:
        """See `ServingSystem`. Raises RuntimeError if a request fails."""
        num_before = len(self.log.iterations)
        self._engine.step()
        self._batch_size = self.log.iterations[-1].batch_size if len(self.log.iterations) > num_before else 0
        for request_id, event in one_by_one(self._engine.requests.events.take()):
            if isinstance(event, FinalEvent):
                if event.outcome is not Outcome.FINISHED:
                    raise RuntimeError(f"{self.name}: request {request_id} {event.outcome}: {event.error}")
                self._completions.append(_completion(request_id, event.stats))

    def take_completions(self) -> list[Completion]:
        """See `ServingSystem`."""
        taken, self._completions = self._completions, []
        return taken

    def facts(self) -> IterationFacts:
        """See `ServingSystem`."""
        running = self._scheduler.pool.running
        held_tokens = self._policies.held_tokens
        used = self._blocks.pool.num_used * self._blocks.block_size
        memory = MemoryUse(
            token_state=num_cached_tokens(self._blocks, self._scheduler.lanes),
            held=used if held_tokens is None else held_tokens(running),
            total=self._pool.num_tokens,
            unshared=self._num_table_entries() * self._blocks.block_size,
        )
        return IterationFacts(self._batch_size, len(self._scheduler.pool.waiting), 0.0, memory)

    def close(self) -> None:
        """See `ServingSystem`."""
        if self._training_id is not None:
            self._engine.stop_training(self._training_id, wants_state=False)
        self._pool.executor.launch(IterationPlan((), released=tuple(range(self._num_sequences)))).wait()

    def _sampling(self, request: OfflineRequest, limit: int) -> SamplingParams:
        """Beams run to their full length: end-of-sequence tokens are ignored."""
        if request.beam_width:
            width = request.beam_width
            return SamplingParams(
                request.output_len, num_logprobs=width, beam=BeamParams(width), seed=self._num_sequences
            )
        return SamplingParams(
            max_tokens=limit,
            n=request.n,
            temperature=self._policies.temperature,
            seed=self._num_sequences,
            stop_token_ids=frozenset({END_TOKEN_ID}),
        )

    def _num_table_entries(self) -> int:
        return sum(
            len(self._blocks.table(sequence.sequence_id).block_ids)
            for group in self._scheduler.pool.running
            for sequence in group.computing
            if self._blocks.has_table(sequence.sequence_id)
        )


def unfitted_cost(pool: KvPool) -> PreemptionCost:
    """Predictors that have seen no timings."""
    return PreemptionCost(IterationTime(pool.padded_size), SwapTime(), pool.max_num_batched_tokens)


def on_demand(pool: KvPool) -> Admission:
    """Headrace's own admission, with its default watermark."""
    return OnDemandAdmission(pool.num_blocks // 100)


def paged(pool: KvPool, known_limit: KnownLimit = exact_limit, name: str = "paged") -> EngineSystem:
    """Headrace as when serving: iteration-level scheduling, blocks on demand (PagedAttention, section 4.5)."""
    return EngineSystem(name, pool, EnginePolicies(on_demand(pool), known_limit))


def reserve(
    pool: KvPool,
    known_limit: KnownLimit,
    max_num_seqs: int | None = None,
    name: str = "ORCA reserve",
) -> EngineSystem:
    """ORCA: iteration-level scheduling; each request reserves all slots that it may need (Algorithm 1)."""
    blocks = BlockManager(pool.num_blocks, pool.block_size, NoPrefixCache(), window=pool.window)

    def held_tokens(running: Sequence[SequenceGroup]) -> int:
        return sum(num_blocks_at_most(group.request, blocks) for group in running) * pool.block_size

    policies = EnginePolicies(ReserveAdmission(), known_limit, max_num_seqs=max_num_seqs, held_tokens=held_tokens)
    return EngineSystem(name, pool, policies)


def _completion(request_id: str, stats: RequestStats) -> Completion:
    assert stats.first_scheduled_s is not None
    return Completion(
        int(request_id),
        stats.arrival_s,
        stats.first_scheduled_s,
        stats.finished_s,
        stats.num_output_tokens,
        stats.num_preemptions,
        stats.first_token_s,
    )
