"""Where the engine may fail, outside the executor: deciding, bookkeeping, applying. Cheap, so there are thousands of
runs."""

from __future__ import annotations

from tests.faults.fault_sites import FaultSite, Reach

_ENGINE, _SCHEDULER, _KVCACHE = "service.engine", "service.scheduler", "service.kvcache"

OF_A_REQUEST = (
    FaultSite("accept", f"{_ENGINE}.live_requests:SequenceGroup", Reach.REQUEST, MemoryError),
    FaultSite("grammar_start", "service.structured.grammar_matcher:CompiledGrammar.start", Reach.REQUEST),
    FaultSite("matcher_accept", "service.structured.grammar_matcher:GrammarMatcher.accept", Reach.REQUEST),
    FaultSite("prefix_cache_match", f"{_KVCACHE}.block_manager:BlockManager.match_prefix", Reach.REQUEST),
    FaultSite("prefix_cache_insert", f"{_KVCACHE}.prefix_cache:ChainedPrefixCache.insert", Reach.REQUEST, MemoryError),
    FaultSite("queue", f"{_SCHEDULER}.waiting_tokens:WaitingTokens._chunks_of", Reach.REQUEST, MemoryError),
    FaultSite("admission", f"{_SCHEDULER}.admission:OnDemandAdmission.fit", Reach.REQUEST),
    FaultSite("computed", f"{_SCHEDULER}.history:History.computed", Reach.REQUEST),
    FaultSite("fork", f"{_ENGINE}.sequence_results:fork_choices", Reach.REQUEST, MemoryError),
    FaultSite("continue_beams", f"{_ENGINE}.sequence_results:continue_beams", Reach.REQUEST, MemoryError),
    FaultSite("beam_search", f"{_ENGINE}.beam_search:BeamSearch.advance", Reach.REQUEST),
    FaultSite("best_beams", f"{_ENGINE}.beam_search:BeamSearch.best", Reach.REQUEST),
    FaultSite("drawn", "service.core.sequence:Sequence.set_drawn", Reach.REQUEST, MemoryError),
    FaultSite("finish_reason", f"{_ENGINE}.sequence_results:_finish_reason", Reach.REQUEST),
    FaultSite("end_choice", f"{_SCHEDULER}.group_end:GroupEnd.end_sequence", Reach.REQUEST),
    FaultSite("end_request", f"{_SCHEDULER}.group_end:GroupEnd.end_group", Reach.REQUEST),
    FaultSite("free", f"{_SCHEDULER}.lanes:LaunchedIterations.free", Reach.REQUEST, caller="end_sequence"),
    FaultSite("request_stats", f"{_ENGINE}.live_requests:_request_stats", Reach.REQUEST),
)

OF_NOBODY = (
    FaultSite("record_iteration", "tests.engine.harness:ListSink.record_iteration", Reach.NOBODY),
    FaultSite("record_commands", "tests.engine.harness:ListSink.record_commands", Reach.NOBODY),
    FaultSite("record_request", "tests.engine.harness:ListSink.record_request", Reach.NOBODY),
    FaultSite("iteration_stats", f"{_ENGINE}.step_record:IterationStats", Reach.NOBODY, MemoryError),
    FaultSite("observe", "service.prediction.recovery_ledger:RecoveryLedger.executed", Reach.NOBODY, ZeroDivisionError),
    FaultSite("predict", "service.prediction.recovery_ledger:RecoveryLedger.iteration_s", Reach.NOBODY),
    FaultSite("token_gaps", f"{_ENGINE}.step_record:ProcessedTokens.gaps", Reach.NOBODY),
)

OF_AN_ITERATION = (
    FaultSite("grammar_masks", "service.structured.token_bitmask:TokenBitmask.begin", Reach.ITERATION, MemoryError),
)

OF_THE_PROCESS = (
    FaultSite("inbox", f"{_ENGINE}.engine_loop:EngineLoop._take_commands", Reach.PROCESS, MemoryError),
    FaultSite("schedule", f"{_SCHEDULER}.iteration_scheduler:IterationScheduler.schedule", Reach.PROCESS),
    FaultSite("allocate_blocks", f"{_KVCACHE}.block_pool:BlockPool.allocate_many", Reach.PROCESS, MemoryError),
    FaultSite("append_block", f"{_KVCACHE}.block_pool:BlockPool.allocate", Reach.PROCESS, MemoryError),
    FaultSite("load_adapter", f"{_KVCACHE}.block_manager:BlockManager.load_adapter", Reach.PROCESS, MemoryError),
    FaultSite("evict_adapter", f"{_KVCACHE}.adapter_slots:AdapterSlots._evict", Reach.PROCESS),
    FaultSite("swap_out", f"{_KVCACHE}.swap_space:SwapSpace.swap_out", Reach.PROCESS, MemoryError),
    FaultSite("swap_in", f"{_KVCACHE}.swap_space:SwapSpace.swap_in", Reach.PROCESS, MemoryError),
    FaultSite("preempt", f"{_SCHEDULER}.group_preemption:GroupPreemption.preempt", Reach.PROCESS),
    FaultSite("plan", f"{_SCHEDULER}.iteration_scheduler:IterationPlan", Reach.PROCESS, AssertionError),
    FaultSite("drafted_plan", f"{_SCHEDULER}.plan_draft:IterationPlan", Reach.PROCESS, AssertionError),
    FaultSite(
        "finish_iteration", f"{_SCHEDULER}.iteration_scheduler:IterationScheduler.finish_iteration", Reach.PROCESS
    ),
    FaultSite(
        "finish_transfers", f"{_SCHEDULER}.iteration_scheduler:IterationScheduler.finish_transfers", Reach.PROCESS
    ),
    FaultSite("decode batch", f"{_SCHEDULER}.decode_batch:DecodeBatch.take", Reach.PROCESS),
    FaultSite("outbox", "service.engine.outbox:Outbox.take", Reach.PROCESS, MemoryError),
    FaultSite("snapshot", f"{_ENGINE}.engine:Engine.snapshot", Reach.PROCESS),
    FaultSite("clock", "tests.faults.engine_scene:BoundedClock.now_s", Reach.PROCESS, OSError, ("before",)),
)

ENGINE_SITES = (*OF_A_REQUEST, *OF_NOBODY, *OF_AN_ITERATION, *OF_THE_PROCESS)
