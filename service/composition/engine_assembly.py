"""From a loaded model to the engine that serves it: block pool, prefix cache, scheduler, executor."""

from __future__ import annotations

from contextlib import ExitStack

from service.composition.cache_window import attention_window, overlaps
from service.composition.kv_events import make_kv_events
from service.composition.model_parts import ModelParts
from service.composition.policies import (
    make_admission,
    make_chunk_budget,
    make_preemption,
    make_scheduling_policy,
    make_speculation,
    make_training_policy,
)
from service.core.clock import Clock
from service.engine.engine import Engine
from service.engine.ports import Executor
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.metrics.recorder import Recorder
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.background_chunks import ON_CPU, ON_GPU
from service.scheduler.background_last import BackgroundLast
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.settings.settings import Settings
from service.structured.token_bitmask import TokenBitmask

PREFIX_ENTRY_TOKENS = 16
"""Smaller blocks enter the prefix cache in groups of this many tokens, as each entry costs a digest."""


def make_engine(
    settings: Settings,
    parts: ModelParts,
    recorder: Recorder,
    clock: Clock,
    stand_in: Executor | None = None,
    at_end: ExitStack | None = None,
) -> tuple[Engine, BlockManager]:
    """An engine that does not run yet, and its block manager. stand_in: an executor instead of the loaded model's.
    at_end: cleans up at the end; None: the prefix cache's events are not published."""
    loaded, config = parts.loaded, parts.scheduler
    recorder.record_host_block_bytes(loaded.host_block_bytes)
    window = attention_window(
        settings,
        loaded.model_config,
        loaded.layer_groups,
        loaded.max_model_len,
        config.max_num_batched_tokens,
        is_gpu=loaded.device != "cpu",
    )
    blocks = _make_blocks(settings, loaded.num_blocks, loaded.num_host_blocks, window, at_end)
    history = History()
    policies = SchedulerPolicies(
        BackgroundLast(make_scheduling_policy(settings, history, blocks.swap_space)),
        make_admission(settings, int(config.watermark * loaded.num_blocks), history),
        make_preemption(settings),
        make_chunk_budget(
            settings, parts.cost.iteration_time, config.max_num_batched_tokens, is_gpu=loaded.device != "cpu"
        ),
        make_training_policy(settings, parts.cost.iteration_time),
        make_speculation(settings, config),
        background_chunk=ON_CPU if loaded.device == "cpu" else ON_GPU,
    )
    scheduler = IterationScheduler(
        blocks,
        policies,
        RecoveryLedger(parts.cost),
        history,
        clock,
        max_num_seqs=config.max_num_seqs,
        max_preemptions=config.max_preemptions,
        num_lanes=settings.num_batches,
    )
    masker = TokenBitmask(
        config.max_num_seqs,
        loaded.model_config.vocab_size,
        loaded.generation.eos_token_ids,
        max(2, settings.pipeline_parallel_size),
    )
    engine = Engine(
        scheduler,
        stand_in or parts.executor,
        recorder,
        clock,
        overlap=overlaps(settings, is_gpu=loaded.device != "cpu"),
        masker=masker,
        idle_work=loaded.idle_work,
        trainings=parts.training_executor if stand_in is None else None,
    )
    return engine, blocks


def _make_blocks(
    settings: Settings,
    num_blocks: int,
    num_host_blocks: int,
    window: AttentionWindow | None,
    at_end: ExitStack | None,
) -> BlockManager:
    block_size = settings.block_size
    per_entry = max(1, PREFIX_ENTRY_TOKENS // block_size)
    events = None if at_end is None else make_kv_events(settings, block_size * per_entry, at_end)
    seen = () if window is None else (window.num_tokens, window.groups)
    cache = (
        ChainedPrefixCache(block_size, per_entry, events, *seen) if settings.enable_prefix_caching else NoPrefixCache()
    )
    lora = settings.lora_config()
    num_slots = 0 if lora is None else lora.num_slots
    return BlockManager(num_blocks, block_size, cache, num_host_blocks, num_slots, window)
