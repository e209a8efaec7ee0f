"""A real engine over the toy model, stepped by hand, with every invariant checked after each step."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

from service.core.adapter import Adapter
from service.core.embedding import Vector
from service.core.events import FinalEvent, Outcome, PooledEvent, PromptEvent, StreamEvent, TokenEvent
from service.core.grammar import TokenMasker
from service.core.iteration import IterationPlan
from service.core.layer_groups import TableGroups, one_group
from service.core.request import FinishReason, Request
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import IterationStats, RequestStats, TrainingStats
from service.core.token_logprobs import TokenLogprobs
from service.engine.engine import Engine
from service.engine.outbox import Addressed, one_by_one
from service.engine.ports import Executor, IdleWork, TrainingExecutor
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_table import HOLE
from service.kvcache.prefix_cache import ChainedPrefixCache, PrefixCache
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.scheduler.admission import Admission, OnDemandAdmission, fits_ever
from service.scheduler.background_last import BackgroundLast
from service.scheduler.cached_tokens import num_cached_tokens
from service.scheduler.chunk_budget import ChunkBudget, FixedBudget
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.fairness import Fair
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.memory_forecast import ForecastAdmission, ReserveAdmission
from service.scheduler.memory_need import num_shared_tokens
from service.scheduler.preemption import AlwaysRecompute, Preemption
from service.scheduler.priority import ByPriority
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.speculation import Speculation
from service.scheduler.token_shares import TokenShares
from tests.engine.toy_grammar import ToyGrammar
from tests.engine.toy_model import ToyExecutor, beam_oracle, cell_of, cells_of, logprob_after, oracle, seen
from tests.kvcache.block_invariants import check_blocks
from tests.manual_clock import ManualClock
from tests.scheduler.lane_invariants import check_lanes

VOCABULARY = 1000


def as_token_event(event: StreamEvent) -> StreamEvent:
    """A plain token id as a TokenEvent; any other event unchanged."""
    return TokenEvent(0, event, None) if isinstance(event, int) else event


class ListSink:
    """Keeps what the engine reports."""

    def __init__(self) -> None:
        self.iterations: list[IterationStats] = []
        self.trainings: list[TrainingStats] = []
        self.requests: list[tuple[RequestStats, Outcome, tuple[FinishReason, ...]]] = []

    def record_iteration(self, stats: IterationStats) -> None:
        self.iterations.append(stats)

    def record_training(self, stats: TrainingStats) -> None:
        self.trainings.append(stats)

    def record_commands(self, seconds: float) -> None:
        assert seconds >= 0

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        self.requests.append((stats, outcome, finish_reasons))


class Harness:
    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        watermark_blocks: int = 0,
        executor: Executor | None = None,
        prefix_cache: PrefixCache | None = None,
        policy: Literal["fcfs", "priority", "fair", "shares"] | SchedulingPolicy = "fcfs",
        admission: Literal["on-demand", "reserve", "forecast"] = "on-demand",
        preemption: Preemption | None = None,
        num_host_blocks: int = 0,
        num_adapter_slots: int = 0,
        transfer_delay: int = 0,
        max_preemptions: int = 1_000_000,
        chunk_budget: ChunkBudget | None = None,
        overlap: bool = False,
        num_lanes: int = 1,
        masker: TokenMasker | None = None,
        idle_work: IdleWork | None = None,
        training: TrainingPolicy | None = None,
        trainings: TrainingExecutor | None = None,
        clock: ManualClock | None = None,
        sink: ListSink | None = None,
        speculation: Speculation | None = None,
        window: int | None = None,
        groups: TableGroups | None = None,
    ) -> None:
        """groups: the layers' groups, if only some of several have the window."""
        self.clock = clock or ManualClock()
        groups = groups or one_group(window)
        if prefix_cache is None:
            prefix_cache = ChainedPrefixCache(block_size, window=window, groups=groups)
        cache, self.window = prefix_cache, None if groups.num_full else window
        seen = None if window is None else AttentionWindow(window, (1 + overlap) * max_num_batched_tokens, groups)
        self.blocks = BlockManager(num_blocks, block_size, cache, num_host_blocks, num_adapter_slots, seen)
        self.toy = ToyExecutor(num_blocks, block_size, VOCABULARY, transfer_delay, window, groups)
        self.executor = executor or self.toy
        self.sink = sink or ListSink()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        history = History()
        self.is_fcfs = policy == "fcfs"
        self.cost = PreemptionCost(IterationTime(), SwapTime(), max_num_batched_tokens)
        self.max_preemptions = max_preemptions
        self.scheduler = IterationScheduler(
            self.blocks,
            SchedulerPolicies(
                BackgroundLast(_scheduling(policy, self.blocks, history)),
                _admission(admission, watermark_blocks, history),
                preemption or AlwaysRecompute(),
                chunk_budget or FixedBudget(max_num_batched_tokens),
                training or DeferredBatching(0.0),
                speculation,
            ),
            RecoveryLedger(self.cost),
            history,
            self.clock,
            max_num_seqs=max_num_seqs,
            max_preemptions=max_preemptions,
            num_lanes=num_lanes,
        )
        self.engine = Engine(
            self.scheduler,
            self.executor,
            self.sink,
            self.clock,
            overlap=overlap,
            masker=masker,
            idle_work=idle_work,
            trainings=trainings,
        )
        self.adapters, self.requests = list[Adapter](), dict[str, Request]()
        self.tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.reasons, self.finals = dict[tuple[str, int], FinishReason](), dict[str, FinalEvent]()
        self.logprobs: dict[tuple[str, int], list[TokenLogprobs]] = defaultdict(list)
        self.prompt_logprobs, self.pooled = dict[str, tuple[TokenLogprobs, ...]](), dict[str, Vector]()

    def request(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        n: int = 1,
        seed: int = 0,
        stops: frozenset[int] = frozenset(),
        temperature: float = 1.0,
        salt: str = "",
        priority: int = 0,
        client: str = "",
        adapter: Adapter | None = None,
        is_background: bool = False,
        **sampling_fields: Any,
    ) -> Request:
        sampling = SamplingParams(max_tokens, n, temperature, seed=seed, stop_token_ids=stops, **sampling_fields)
        name = f"request-{len(self.requests)}"
        request = Request(
            name, prompt, sampling, self.clock.now_s(), salt, priority, client, None, adapter, is_background
        )
        self.requests[request.request_id] = request
        return request

    def beam_request(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        width: int,
        n: int = 1,
        stops: frozenset[int] = frozenset(),
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        salt: str = "",
        adapter: Adapter | None = None,
    ) -> Request:
        beam = BeamParams(width, length_penalty, early_stopping)
        num_logprobs = width + len(stops)
        return self.request(
            prompt,
            max_tokens,
            n,
            stops=stops,
            temperature=0.0,
            salt=salt,
            adapter=adapter,
            num_logprobs=num_logprobs,
            beam=beam,
        )

    def adapter(self, num_blocks: int, digest: str | None = None) -> Adapter:
        """A new adapter; without a digest, with weights that no other one has."""
        adapter_id = len(self.adapters) + 1
        name = f"adapter-{adapter_id}"
        adapter = Adapter(name, adapter_id, num_blocks, digest or name)
        self.adapters.append(adapter)
        if isinstance(self.executor, ToyExecutor):
            self.executor.digests[adapter_id] = adapter.digest
        return adapter

    def add(self, request: Request) -> bool:
        """False if the engine refuses the request because it could never run."""
        if not fits_ever(request, self.blocks, self.max_num_seqs):
            return False
        self.engine.requests.add(request)
        return True

    def running_with(self, adapter_id: int) -> list[int]:
        """Ids of the sequences that run with this adapter."""
        groups = [g for g in self.scheduler.pool.running if g.request.adapter is not None]
        return [s.sequence_id for g in groups if g.request.adapter.adapter_id == adapter_id for s in g.sequences]

    def sequences_with(self, block_ids: set[int]) -> list[int]:
        """Ids of the sequences on the device that have any of these blocks."""
        return [i for i, table in self.blocks._tables.items() if not block_ids.isdisjoint(table.block_ids)]

    def step(self) -> None:
        self.clock.advance(0.01)
        self.engine.step()
        self.collect()
        self.check()

    def run(self, max_steps: int = 10_000) -> None:
        """Step until no request is live; fails if that takes more than `max_steps`."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def collect(self) -> None:
        self.take_in(one_by_one(self.engine.requests.events.take()))

    def take_in(self, events: Iterable[Addressed]) -> None:
        """Record the engine's events."""
        for request_id, event in events:
            assert request_id not in self.finals, "nothing follows the final event"
            event = as_token_event(event)
            if isinstance(event, TokenEvent):
                key = (request_id, event.choice_index)
                assert key not in self.reasons, "no token follows the last one"
                self.tokens[key].append(event.token_id)
                if event.finish_reason is not None:
                    self.reasons[key] = event.finish_reason
                if event.logprobs is not None:
                    self.logprobs[key].append(event.logprobs)
            elif isinstance(event, PromptEvent):
                assert request_id not in self.prompt_logprobs, "the prompt is scored once"
                assert not any(key[0] == request_id for key in self.tokens), "before every token"
                self.prompt_logprobs[request_id] = event.logprobs
            elif isinstance(event, PooledEvent):
                assert request_id not in self.pooled, "the prompt is pooled once"
                self.pooled[request_id] = event.vector
            elif isinstance(event, FinalEvent):
                self.finals[request_id] = event

    def check(self) -> None:
        check_blocks(self.blocks)
        pool = self.scheduler.pool
        self._check_lanes()
        for group in pool.running:
            self._check_running(group)
        for group in pool.waiting:
            for sequence in group.sequences:
                holds_device = self.blocks.holds(sequence.sequence_id)
                assert holds_device == self.blocks.swap_space.holds(sequence.sequence_id), (
                    "who waits holds no device block"
                )
        nobody_is_spared = all(g.num_preemptions < self.max_preemptions for g in pool.groups())
        is_fcfs = self.is_fcfs and not any(request.is_background for request in self.requests.values())
        ordered = [*pool.running, *pool.waiting] if is_fcfs and nobody_is_spared else pool.waiting
        assert pool.waiting_tokens.total == sum(g.num_tokens_to_compute for g in pool.waiting)
        assert 0 <= pool.waiting_tokens.distinct <= pool.waiting_tokens.total
        arrivals = [g.arrival_order for g in ordered]
        assert arrivals == sorted(arrivals), "order of arrival"
        num_used = self.blocks.pool.num_used - self.blocks.adapter_slots.num_blocks - self.blocks.arena.num_idle_blocks
        assert 0 <= num_cached_tokens(self.blocks, self.scheduler.lanes) <= num_used * self.blocks.block_size
        held: set[int] = set()
        running_plans = [launched.plan for launched in self.engine._launched]
        for plan in running_plans:
            for sequence_id in sequence_ids(plan):
                assert self.blocks.holds(sequence_id), "what a running iteration touches is not free"
        if not pool.running and not running_plans:
            held = set(self.blocks.swap_space.held_device_blocks())
            assert num_used == len(held), "nobody runs and nothing is held but what moves"
        if not self.engine.has_work and not held:
            assert self.blocks.swap_space.num_used == 0
        self._check_sharing()
        self._check_prefix_cache()
        if not self.scheduler.training.is_runnable:
            assert self.blocks.arena.lent is None, "a training that is over has no memory"
        if self.toy.plans:
            assert self.toy.plans[-1].num_scheduled_tokens <= self.max_num_batched_tokens

    def _check_lanes(self) -> None:
        """ORCA, Algorithm 1: no more batches in flight than stages, and no request in two of them."""
        lanes, running = self.scheduler.lanes, self.scheduler.pool.running
        check_lanes(lanes, running)
        for batch in lanes:
            seated = [s for g in running if batch.holds(g) for s in g.live if not s.is_drawn_out]
            assert len(seated) <= self.max_num_seqs
        if len(lanes) > 1:
            plans = [launched.plan for launched in self.engine._launched]
            in_flight = [sequence_id for plan in plans for sequence_id in sequence_ids(plan)]
            assert len(plans) <= len(lanes)
            assert len(set(in_flight)) == len(in_flight), "no request is in two batches"

    def _check_sharing(self) -> None:
        """Tables share a block only where salt, position and every token up to the block's end agree."""
        holders: dict[int, tuple[str, int, Sequence]] = {}
        for group in self.scheduler.pool.running:
            for sequence in filter(self._has_table, group.computing):
                for index, block_id in enumerate(self.blocks.table(sequence.sequence_id).block_ids):
                    if block_id == HOLE:
                        continue
                    held = (group.request.prefix_salt, index, sequence)
                    unit = index // self.blocks.groups.size
                    salt, position, other = holders.setdefault(block_id, held)
                    assert (salt, position) == held[:2]
                    if other is sequence:
                        continue
                    computed = min(self._num_computed(sequence), self._num_computed(other))
                    end = min((unit + 1) * self.blocks.block_size, computed)
                    pairs = zip(other.token_ids[:end], sequence.token_ids[:end], strict=True)
                    assert all(a == b or PENDING_TOKEN_ID in (a, b) for a, b in pairs)

    def _num_computed(self, sequence: Sequence) -> int:
        """A sequence in the decode batch does not have this number itself until it has left."""
        running, lanes = self.scheduler.pool.running, self.scheduler.lanes
        together = {group.live[0].sequence_id for group in running if any(group in batch for batch in lanes)}
        return len(sequence.token_ids) - 1 if sequence.sequence_id in together else sequence.num_computed_tokens

    def _check_prefix_cache(self) -> None:
        """What the prefix cache can find is computed: an entry's blocks hold its tokens, in order of position."""
        cache, executor = self.blocks._prefix_cache, self.executor
        if not (isinstance(cache, ChainedPrefixCache) and isinstance(executor, ToyExecutor)):
            return
        arriving = {c.destination: c.source for launched in self.engine._launched for c in launched.plan.copies}
        parts = [
            (entry, entry.block_ids[group :: len(kind.groups)])
            for kind in cache.known.kinds
            for entry in kind.entries.values()
            for group in range(len(kind.groups))
        ]
        for entry, block_ids in parts:
            held = [cell for block_id in block_ids for cell in executor.block(arriving.get(block_id, block_id))]
            assert held[0] is not None, "an entry's blocks are computed"
            _, first, *weights = held[0]
            assert first % cache.tokens_per_entry == 0
            tokens = array("i", entry.tokens)
            if self.window is not None:  # what each saw is its own
                assert [cell and cell[:2] for cell in held] == [(token, first + i) for i, token in enumerate(tokens)]
                continue
            assert held == [cell_of(token_id, first + i, *(weights or [None])) for i, token_id in enumerate(tokens)]

    def check_nothing_left(self) -> None:
        """All requests have ended, once each, and nothing of any of them is left."""
        assert len(self.sink.requests) == len(self.finals)
        self.check_books()

    def check_books(self) -> None:
        """Nothing is left of ended requests, and one more request leaves nothing either."""
        scheduler, pool, blocks = self.scheduler, self.scheduler.pool, self.blocks
        assert not self.engine.has_work
        assert blocks.pool.num_used - blocks.adapter_slots.num_blocks == blocks.swap_space.num_used == 0
        assert blocks.arena.lent is None
        assert blocks.adapter_slots.num_pinned_blocks == 0
        assert not (pool.num_waiting_by_adapter or pool.num_running_by_adapter)
        assert not (pool.waiting or pool.running or pool.preempted or pool._members)
        assert pool.waiting_tokens.total == pool.waiting_tokens.distinct == 0
        assert not (scheduler.ledger._recomputing or scheduler.ledger._transfers or scheduler.history._num_live)
        assert not (self.engine.requests.searches or self.engine.requests.constrained)
        assert not any(len(batch) or batch.unbatched for batch in scheduler.lanes)
        last = self.request((1,), 1)
        if self.add(last):
            self.run()
            if isinstance(self.executor, ToyExecutor):
                assert len(self.executor.tables) == 1, "the executor has heard of all the others"

    def _check_running(self, group: SequenceGroup) -> None:
        leader, shared = group.leader, num_shared_tokens(group.request, self.blocks.block_size)
        for sequence in group.computing:
            if not self._has_table(sequence):
                assert sequence is not leader and leader.num_computed_tokens < shared, "it waits for its prompt"
                continue
            table = self.blocks.table(sequence.sequence_id)
            waits = bool(self.engine._launched) or sequence.top is not None
            assert sequence.num_tokens_to_compute > 0 or waits
            assert self.blocks.num_tokens_in(len(table.block_ids)) >= self._num_computed(sequence)
            num_units = len(table.block_ids) // self.blocks.groups.size
            assert len(table.held) <= self.blocks.most_held(num_units), "as was promised"

    def _has_table(self, sequence: Sequence) -> bool:
        return self.blocks.has_table(sequence.sequence_id)

    def check_against_oracle(self, request_id: str, choice_index: int = 0, complete: bool = True) -> None:
        request = self.requests[request_id]
        sampling, digest = request.sampling, _digest(request)
        if sampling.beam is None:
            seed, stops = sampling.seed + choice_index, sampling.stop_token_ids
            assert request.grammar is None or isinstance(request.grammar, ToyGrammar)
            prompt, max_tokens = request.prompt_token_ids, sampling.max_tokens
            expected = oracle(prompt, seed, max_tokens, stops, VOCABULARY, request.grammar, digest, self.window)
        else:
            expected = beam_oracle(request.prompt_token_ids, sampling, digest, self.window)[choice_index]
        got = self.tokens[request_id, choice_index]
        assert got == (expected if complete else expected[: len(got)])
        if isinstance(self.executor, ToyExecutor) and sampling.beam is None:
            self._check_logprobs(request, choice_index, complete)

    def _check_logprobs(self, request: Request, choice_index: int, complete: bool) -> None:
        """Check each token's logprob and, once there is a token, the prompt's."""
        prompt, drawn = request.prompt_token_ids, self.tokens[request.request_id, choice_index]
        cells = cells_of([*prompt, *drawn], _digest(request), self.window)
        views = ((cell[0], seen(cells[: cell[1]], self.window)) for cell in cells[1:])
        by_position = [logprob_after(view, token_id) for token_id, view in views]
        if request.sampling.num_logprobs is not None:
            got = self.logprobs[request.request_id, choice_index]
            assert [entry.chosen for entry in got] == by_position[len(prompt) - 1 :]
        if request.sampling.num_prompt_logprobs is not None and (drawn or complete):
            scored = self.prompt_logprobs[request.request_id]
            assert [entry.chosen for entry in scored] == by_position[: len(prompt) - 1]


def _admission(name: Literal["on-demand", "reserve", "forecast"], watermark_blocks: int, history: History) -> Admission:
    match name:
        case "on-demand":
            return OnDemandAdmission(watermark_blocks)
        case "reserve":
            return ReserveAdmission()
        case "forecast":
            return ForecastAdmission(history)


def _scheduling(policy: str | SchedulingPolicy, blocks: BlockManager, history: History) -> SchedulingPolicy:
    if not isinstance(policy, str):
        return policy
    policies: dict[str, SchedulingPolicy] = {
        "fcfs": FirstComeFirstServed(),
        "priority": ByPriority(),
        "fair": Fair(blocks.swap_space),
        "shares": TokenShares(history),
    }
    return policies[policy]


def sequence_ids(plan: IterationPlan) -> list[int]:
    """Ids of all sequences that it computes, each once."""
    return list(dict.fromkeys([*plan.decodes.sequence_ids.tolist(), *(item.sequence_id for item in plan.scheduled)]))


def _digest(request: Request) -> str | None:
    return None if request.adapter is None else request.adapter.digest
