"""From the settings to the scheduler's policies. A new policy needs its file, its line here and its test."""

from __future__ import annotations

from service.config import SchedulerConfig
from service.kvcache.swap_space import SwapSpace
from service.prediction.iteration_time import IterationTime
from service.scheduler.admission import Admission, OnDemandAdmission
from service.scheduler.chunk_budget import ChunkBudget, FixedBudget, InPieces, InterTokenTarget
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.fairness import Fair
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.interleaved_training import InterleavedTraining
from service.scheduler.memory_forecast import ForecastAdmission, ReserveAdmission
from service.scheduler.preemption import AdaptivePreemption, AlwaysRecompute, AlwaysSwap, Preemption
from service.scheduler.priority import ByPriority
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.speculation import Speculation
from service.scheduler.token_shares import TokenShares
from service.settings.settings import Settings


def make_scheduling_policy(settings: Settings, history: History, swap_space: SwapSpace) -> SchedulingPolicy:
    """Which request runs next."""
    match settings.scheduling_policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "priority":
            return ByPriority()
        case "fair":
            return Fair(swap_space)
        case "shares":
            return TokenShares(history)


def make_admission(settings: Settings, watermark_blocks: int, history: History) -> Admission:
    """When a request is admitted."""
    match settings.admission_policy:
        case "on-demand":
            return OnDemandAdmission(watermark_blocks)
        case "reserve":
            return ReserveAdmission()
        case "forecast":
            return ForecastAdmission(history)


def make_preemption(settings: Settings) -> Preemption:
    """How a preempted request is restored."""
    match settings.preemption:
        case "recompute":
            return AlwaysRecompute()
        case "swap":
            return AlwaysSwap()
        case "adaptive":
            return AdaptivePreemption()


def make_training_policy(settings: Settings, iteration_time: IterationTime) -> TrainingPolicy:
    """Whether requests or a fine-tuning job go first."""
    target_ms = settings.inter_token_target_ms
    if settings.finetuning_mode == "deferred" or target_ms is None:
        return DeferredBatching(settings.deferral_bound)
    return InterleavedTraining(iteration_time, target_ms / 1000)


def make_speculation(settings: Settings, config: SchedulerConfig) -> Speculation | None:
    """Whether draft tokens are computed, and how many; None: none."""
    if settings.speculation == "none":
        return None
    num_drafts = settings.num_speculative_tokens
    # One sequence may draft whatever the number of sequences is, and the budget always has a token left for prompts.
    most_rows = min(max(config.max_num_seqs, 1 + num_drafts), config.max_num_batched_tokens - 1)
    return Speculation(num_drafts, most_rows)


def make_chunk_budget(
    settings: Settings, iteration_time: IterationTime, max_num_batched_tokens: int, *, is_gpu: bool
) -> ChunkBudget:
    """How many tokens an iteration may have."""
    target_ms = settings.inter_token_target_ms
    if target_ms is None:
        return InPieces(max_num_batched_tokens) if is_gpu else FixedBudget(max_num_batched_tokens)
    return InterTokenTarget(iteration_time, target_ms / 1000, max_num_batched_tokens)
