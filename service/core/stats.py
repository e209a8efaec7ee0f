"""Plain facts about iterations and requests, handed to the metrics. Seconds are on the engine's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from service.core.request_journal import Chunk, Wait


class Prediction(NamedTuple):
    """What a predictor said, and what was then measured.

    iteration: seconds of an iteration with prompt tokens, from its launch (or from the end of the previous iteration,
        if later) to its end. Left out: iterations whose exact end was not seen, and those that start transfers, since
        launching these takes time, too.
    recompute: seconds of the iterations that recompute a preempted request. Predicted: what they would have taken
        without it, plus what recomputing was predicted to add at the time of the preemption.
    swap: seconds of one transfer's copies, in one direction.
    training: seconds of the layer steps of one plan.

    A prediction uses only what was learned before this measurement (for a recovery: before the preemption).
    """

    predictor: Literal["iteration", "recompute", "swap", "training"]
    predicted_s: float
    actual_s: float


class Deferral(NamedTuple):
    """How long a training made a request wait before its first chance to start. cause: `bound`: the deferral bound let
    it wait; `piece`: it arrived while layer steps ran and was considered after them."""

    cause: Literal["bound", "piece"]
    seconds: float


class TrainingStats(NamedTuple):
    """The layer steps of one plan, and how long they took. prediction: None if none was made, or if fewer steps were
    left than planned."""

    num_layer_steps: int
    seconds: float
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class PreemptionStats:
    """One preemption of a request, and what it cost to undo.

    recovery: how the request came back. num_tokens, num_blocks: what it had computed and held. at_s: when it was
    preempted. predicted_s: predicted at that time: seconds of the transfers out and in, or seconds that recomputing
    adds to iterations; None if the predictor knew too little.
    actual_s: for a swap, seconds of the transfers out and in. For a recomputation, the seconds by which its iterations
    exceeded their prediction without it; requests recomputed together share them in proportion to tokens. None if the
    request ended before that was known.
    """

    recovery: Literal["recompute", "swap"]
    num_tokens: int
    num_blocks: int
    at_s: float
    predicted_s: float | None
    actual_s: float | None = None


class IterationStats(NamedTuple):
    """One iteration. A NamedTuple, since that costs a third of a frozen dataclass.

    batch_size: sequences scheduled. prompt_tokens: prompt tokens computed for the first time; recomputed_tokens: tokens
    computed again after a preemption; generated_tokens: ids drawn.
    num_dropped, num_swapped: requests preempted by this decision, to be recomputed or swapped back in.
    prefix_queried_tokens, prefix_hit_tokens: prompt tokens of the requests that started, and those of them that the
    prefix cache had. swapped_blocks: blocks whose transfer, in either direction, began.
    num_arena_returns: how often requests took a training's KV blocks back since the last decision;
    num_micro_batches_lost: how often that interrupted a micro-batch.
    num_adapter_loads: adapters copied to the device for this iteration. num_adapter_evictions: adapters evicted from
    the device since the last decision, for lack of slots or blocks.
    schedule_s, launch_s, wait_s, apply_s: host seconds spent on deciding, launching, waiting for the result (including
    the delay of the next launch) and applying it. device_s: seconds on the device, as seen from the host. With
    overlapping iterations, others are decided, launched and applied between this one's launch and wait.
    predictions: those whose outcome was measured since the last iteration.
    is_replayed: the model's step was one CUDA graph.
    token_gaps: (seconds between two tokens of a request, how many of this iteration's tokens came after that gap).
    deferrals: of requests that were considered for the first time.
    drafts: per sequence with drafts: (drafts computed, drafts that were right).
    """

    batch_size: int
    prompt_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    num_dropped: int
    num_swapped: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    swapped_blocks: int
    schedule_s: float
    launch_s: float
    wait_s: float
    device_s: float
    apply_s: float
    predictions: tuple[Prediction, ...] = ()
    token_gaps: tuple[tuple[float, int], ...] = ()
    is_replayed: bool = False
    num_adapter_loads: int = 0
    num_adapter_evictions: int = 0
    deferrals: tuple[Deferral, ...] = ()
    num_arena_returns: int = 0
    num_micro_batches_lost: int = 0
    drafts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One request at its end. `first_scheduled_s` and `first_token_s` are None if that never happened.

    preemptions: the last few of `num_preemptions`. waits, chunks: the last few (core/request_journal.py); num_chunks
    counts all chunks. num_iterations: iterations that computed some of it. num_tokens_of_longest: output tokens of its
    longest choice. adapter: name of its adapter; empty: base model. num_drafted, num_accepted: draft tokens computed,
    and how many of them were right.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    n: int
    max_tokens: int
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    num_preemptions: int
    preemptions: tuple[PreemptionStats, ...] = ()
    waits: tuple[Wait, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    num_chunks: int = 0
    num_iterations: int = 0
    num_tokens_of_longest: int = 0
    adapter: str = ""
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def e2e_s(self) -> float:
        return self.finished_s - self.arrival_s

    @property
    def normalized_latency_s(self) -> float | None:
        """End-to-end seconds per output token (ORCA, section 6.2); None without output."""
        return self.e2e_s / self.num_output_tokens if self.num_output_tokens else None

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean seconds between two tokens of a choice; None with fewer than two. Choices are assumed to have equally
        many tokens, generated side by side."""
        steps = self.num_output_tokens / self.n - 1
        return None if self.first_token_s is None or steps <= 0 else (self.finished_s - self.first_token_s) / steps

    @property
    def weighted_turnaround(self) -> float | None:
        """End-to-end seconds / seconds since its first iteration (AdaptiveLLM, section 4.4); 1 if it never waited, None
        if it never ran."""
        if self.first_scheduled_s is None or self.finished_s <= self.first_scheduled_s:
            return None
        return self.e2e_s / (self.finished_s - self.first_scheduled_s)


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """num_slots: how many adapters fit on the device at once; 0: none are served. num_resident: adapters on the device,
    whose weights take `num_blocks` KV blocks. num_running, num_waiting: requests by adapter name."""

    num_slots: int = 0
    num_resident: int = 0
    num_blocks: int = 0
    num_running: Mapping[str, int] = field(default_factory=dict)
    num_waiting: Mapping[str, int] = field(default_factory=dict)


NO_ADAPTERS = AdapterUse()


class EngineSnapshot(NamedTuple):
    """The engine's state after an iteration. Replaced as a whole, so any thread may read the latest one.

    num_running, num_waiting: requests. num_swapped: waiting requests whose blocks are on the host or on the way there.
    batch_size: sequences in the last iteration, 0 when idle.
    waiting_tokens: tokens that waiting requests have to compute. distinct_waiting_tokens: the same, but a prefix shared
    by several prompts counts once.
    kv_tokens: tokens in used blocks; those of shared blocks count once. kv_token_blocks: how many blocks requests held
    when kv_tokens was counted, which may be an iteration or many ago.
    longest_sequence: the most tokens of a sequence that has the whole cache; None: the cache does not limit it.
    num_layer_groups: how many blocks a sequence fills per block_size tokens.
    used_blocks: includes those of adapters. arena_blocks: blocks lent to a training, not in used_blocks, since requests
    can take them back.
    num_failed_in_a_row: failed iterations since the last one that gave a request something.
    """

    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    batch_size: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    block_size: int = 1
    kv_tokens: int = 0
    kv_token_blocks: int = 0
    num_swapped: int = 0
    num_failed_in_a_row: int = 0
    distinct_waiting_tokens: int = 0
    adapters: AdapterUse = NO_ADAPTERS
    arena_blocks: int = 0
    longest_sequence: int | None = None
    num_layer_groups: int = 1


class RankFacts(NamedTuple):
    """What a rank reports of itself; sums since its start.

    memory_bytes: GPU memory that its process's allocator holds. kv_bytes: its part of the KV cache. num_messages,
    latency_s, max_latency_s: control messages received, and the time from writing to receiving them, total and longest,
    without the time in which the rank was busy. busy_s: host time executing plans. waiting_s: time waiting for a plan.
    num_adapters: adapters of which it has its part in host memory. num_exchanges, exchange_s: timed exchanges of
    tensors with other ranks. stage: its pipeline stage; None if there is only one. compute_s: device time computing
    plans, if there are several stages.
    Rank 0, which sends the messages, reports only memory, KV cache, exchanges and compute_s.
    """

    rank: int
    memory_bytes: int
    kv_bytes: int
    num_messages: int
    latency_s: float
    max_latency_s: float
    busy_s: float
    waiting_s: float
    num_adapters: int = 0
    num_exchanges: int = 0
    exchange_s: float = 0.0
    stage: int | None = None
    compute_s: float = 0.0
