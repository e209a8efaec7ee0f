"""Plain facts of an iteration and of a request, handed to the metrics; seconds are on the engine's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from service.core.request_journal import Chunk, Wait


class Prediction(NamedTuple):
    """What a predictor said, and what was then measured of the same thing.

    iteration: seconds of an iteration that computes prompts, from its launch (or from the end of the iteration before
    it, if that still ran then) to its end. Two kinds are left out: iterations whose exact end the engine did not see,
    and those that begin transfers, since launching a transfer takes time, too.
    recompute: of a preempted request, seconds of the iterations in which it is computed again; predicted is what they
    would have taken without it, and by how much longer they were to take when it was preempted.
    swap: seconds that the copies of one transfer took, in one direction.
    training: seconds of layer steps that one plan had.
    The prediction rests on everything that was learnt before this measurement (of a recovery, before the preemption),
    and on nothing of it.
    """

    predictor: Literal["iteration", "recompute", "swap", "training"]
    predicted_s: float
    actual_s: float


class Deferral(NamedTuple):
    """For how long a request has waited, before its first chance to start, for a training. cause: `bound`, the deferral
    bound let it wait; or `piece`, it came while layer steps ran and was looked at behind them."""

    cause: Literal["bound", "piece"]
    seconds: float


class TrainingStats(NamedTuple):
    """Layer steps that one plan had, and how long they took. prediction: None where nothing was predicted, or fewer
    steps were left than were planned."""

    num_layer_steps: int
    seconds: float
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class PreemptionStats:
    """One preemption of a request, and what it cost to undo.

    recovery: how it returned. num_tokens, num_blocks: what it had computed and held. at_s: when it was preempted.
    predicted_s: as predicted at that moment: the seconds of the transfers out and in, or those by which recomputing
    makes iterations longer. None before the predictor knew enough.
    actual_s: of a swap, the seconds of the transfers out and in. Of a recomputation, the seconds by which its
    iterations exceeded their prediction without it, shared among what they recomputed by tokens. None if the request
    ended before that was known.
    """

    recovery: Literal["recompute", "swap"]
    num_tokens: int
    num_blocks: int
    at_s: float
    predicted_s: float | None
    actual_s: float | None = None


class IterationStats(NamedTuple):
    """One iteration. A named tuple, which is made at a third of a frozen dataclass's cost.

    batch_size: sequences scheduled. prompt_tokens: tokens computed that belong to prompts, for the first time;
    recomputed_tokens: tokens computed again after a preemption; generated_tokens: ids drawn.
    num_dropped, num_swapped: requests preempted while deciding, to be recomputed or to return from the host.
    prefix_queried_tokens, prefix_hit_tokens: prompt tokens that started with this iteration, and those of them that
    the prefix cache held. swapped_blocks: blocks whose transfer, either way, began.
    num_arena_returns: KV blocks of a training that requests took back since the last iteration was decided, so many
    times; num_micro_batches_lost: how many of these had a micro-batch under way.
    num_adapter_loads: adapters that were copied to the device for it. num_adapter_evictions: adapters that had to leave
    the device since the last iteration was decided, because slots or blocks were short.
    schedule_s, launch_s, wait_s, apply_s: host seconds spent deciding it, launching it, waiting for its result (which
    includes delaying the next launch) and applying the result. device_s: seconds on the device, as the host sees
    them. Where iterations overlap, others are decided, launched and applied between this one's launch and wait.
    predictions: those whose outcome was measured since the last iteration.
    is_replayed: the model's step was one CUDA graph.
    token_gaps: pairs of seconds between two tokens of one request, and how many of this iteration's tokens came after
    such a gap.
    deferrals: of requests that were looked at for the first time.
    drafts: of each sequence that computed drafts, how many, and how many of them were right.
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
    counts all chunks. num_iterations: how many iterations computed a part of it. num_tokens_of_longest: output tokens
    of its longest choice. adapter: its name; empty for the model as it is. num_drafted, num_accepted: draft tokens that
    were computed, and those of them that were right.
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
        """Mean seconds between two tokens of a choice; None with fewer than two. The choices' tokens come side by
        side."""
        steps = self.num_output_tokens / self.n - 1
        return None if self.first_token_s is None or steps <= 0 else (self.finished_s - self.first_token_s) / steps

    @property
    def weighted_turnaround(self) -> float | None:
        """End-to-end seconds divided by the seconds since its first iteration (AdaptiveLLM, section 4.4); 1 if it never
        waited. None if it never ran."""
        if self.first_scheduled_s is None or self.finished_s <= self.first_scheduled_s:
            return None
        return self.e2e_s / (self.finished_s - self.first_scheduled_s)


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """num_slots: adapters that the device can hold at once; 0: none are served. num_resident: those that are there, in
    `num_blocks` KV blocks. num_running, num_waiting: requests by the name of their adapter."""

    num_slots: int = 0
    num_resident: int = 0
    num_blocks: int = 0
    num_running: Mapping[str, int] = field(default_factory=dict)
    num_waiting: Mapping[str, int] = field(default_factory=dict)


NO_ADAPTERS = AdapterUse()


class EngineSnapshot(NamedTuple):
    """The engine's state after an iteration; replaced whole, so any thread may read the latest.

    num_running, num_waiting: requests. num_swapped: waiting requests whose blocks are on the host, or being swapped
    out. batch_size: sequences in the last iteration, 0 when idle.
    waiting_tokens: tokens that the waiting requests still have to compute. distinct_waiting_tokens: those of a
    beginning that several of their prompts share counted once.
    kv_tokens: tokens that the used blocks hold; a shared block's tokens count once. kv_token_blocks: how many blocks
    requests had when they were counted, which may be an iteration or many ago.
    longest_sequence: tokens that a sequence may have that is alone in the cache; None: as many as the model takes.
    num_layer_groups: blocks that block_size tokens of a sequence fill.
    used_blocks: with those of adapters. arena_blocks: of the others, those that a training has; requests can have them.
    num_failed_in_a_row: iterations that have failed since the last one that gave some request something.
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
    """What a rank tells of itself, since its start.

    memory_bytes: of a GPU, that its process's allocator has taken. kv_bytes: its part of the KV cache. num_messages,
    latency_s, max_latency_s: control messages that it took; from writing to taking them all, and the longest, without
    the time in which the rank was busy. busy_s: its host carried out plans. waiting_s: it waited for one. num_adapters:
    of which it holds its part in the host's memory. num_exchanges, exchange_s: of tensors with other ranks, that were
    timed. stage: that it is of; None where there is one. compute_s: its device computed plans, where there are several.
    Of rank 0, which tells the others, only memory, KV cache, exchanges and compute_s.
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
