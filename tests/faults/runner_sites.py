"""Where executing a plan may fail. Each fault costs its iteration's requests, unless it is known whose fault it is."""

from __future__ import annotations

from torch import OutOfMemoryError

from tests.faults.fault_sites import FaultSite, Moment, Reach

_RUNNER = "service.runner"
_BEFORE: tuple[Moment, ...] = ("before",)
"""For calls after which the next call is a site of its own."""

RUNNER_SITES = (
    FaultSite("launch", f"{_RUNNER}.model_runner:ModelRunner._compute", Reach.ITERATION, OutOfMemoryError),
    FaultSite("wait_for_ids", f"{_RUNNER}.step:PendingTokenIds.wait", Reach.ITERATION),
    FaultSite("batch", f"{_RUNNER}.step:flatten", Reach.ITERATION, MemoryError, moments=_BEFORE),
    FaultSite(
        "sequence_row", f"{_RUNNER}.sequence_rows:SequenceRows.remember", Reach.ITERATION, MemoryError, moments=_BEFORE
    ),
    FaultSite("to_device", f"{_RUNNER}.eager_step:to_device", Reach.ITERATION, OutOfMemoryError, moments=_BEFORE),
    FaultSite(
        "forward", f"{_RUNNER}.forward_pass:ForwardPass.compute", Reach.ITERATION, OutOfMemoryError, moments=_BEFORE
    ),
    FaultSite(
        "logits", "service.models.causal_lm:CausalLM.compute_logits", Reach.ITERATION, OutOfMemoryError, moments=_BEFORE
    ),
    FaultSite("sample", f"{_RUNNER}.eager_step:draw_all", Reach.ITERATION, OutOfMemoryError, moments=_BEFORE),
    FaultSite("note_drawn", f"{_RUNNER}.drawn_ids:DrawnIds.note", Reach.ITERATION, moments=_BEFORE),
    FaultSite("fill_in_drawn", f"{_RUNNER}.drawn_ids:DrawnIds.fill_in", Reach.ITERATION, moments=_BEFORE),
    FaultSite(
        "score_prompts", f"{_RUNNER}.eager_step:score_prompts", Reach.ITERATION, OutOfMemoryError, moments=_BEFORE
    ),
    FaultSite("logprobs", f"{_RUNNER}.logprobs:DrawLogprobs.wait", Reach.ITERATION, moments=_BEFORE),
    FaultSite("prompt_logprobs", f"{_RUNNER}.logprobs:PromptLogprobs.wait", Reach.ITERATION, moments=_BEFORE),
    FaultSite("copy_blocks", f"{_RUNNER}.kv_storage:KvStorage.copy", Reach.ITERATION, moments=_BEFORE),
    FaultSite("start_transfer", f"{_RUNNER}.kv_transfer:KvTransfer.start", Reach.ITERATION),
    FaultSite(
        "store_block", f"{_RUNNER}.host_blocks:PlainHostBlocks.store", Reach.ITERATION, MemoryError, moments=_BEFORE
    ),
    FaultSite("load_block", f"{_RUNNER}.host_blocks:PlainHostBlocks.load", Reach.ITERATION, moments=_BEFORE),
    FaultSite("finished_transfers", f"{_RUNNER}.kv_transfer:KvTransfer.take_finished", Reach.ITERATION),
    FaultSite("wait_for_masks", f"{_RUNNER}.eager_step:with_grammar_masks", Reach.ITERATION, moments=_BEFORE),
    FaultSite(
        "fill_masks",
        "service.structured.token_bitmask:TokenBitmask._fill",
        Reach.ITERATION,
        MemoryError,
        moments=_BEFORE,
    ),
    FaultSite("release_row", f"{_RUNNER}.sampling_rows:SamplingRows.release", Reach.ITERATION, moments=_BEFORE),
    FaultSite("sampling_rows", f"{_RUNNER}.sampling_rows:SamplingRows.update", Reach.ITERATION, moments=_BEFORE),
    FaultSite("sampling_row", f"{_RUNNER}.sampling_rows:SamplingRows._make_row", Reach.REQUEST, moments=_BEFORE),
    FaultSite("sampling_extras", f"{_RUNNER}.sampling_rows:SamplingRows.extras", Reach.ITERATION, moments=_BEFORE),
    FaultSite("forbidden_ids", f"{_RUNNER}.sampling_rows:_forbidden_now", Reach.REQUEST, moments=_BEFORE),
)
