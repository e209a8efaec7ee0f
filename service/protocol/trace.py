"""GET /v1/requests/{id}/trace: where the time of a request went."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

TraceOutcome = Literal["running", "finished", "aborted", "failed"]


WaitReason = Literal["iteration", "sequences", "tokens", "memory", "adapter", "transfer", "deferral"]


class WaitTrace(BaseModel):
    """reason: what the last decision that let the request wait ran out of: sequences in an iteration, tokens in an
    iteration, KV blocks, slots or KV blocks for its adapter, or blocks that were still being transferred.
    `deferral`: nothing; a fine-tuning job went first, within the deferral bound. `iteration`: nothing; the request
    came while an iteration was running."""

    since_s: float
    until_s: float
    reason: WaitReason


class ChunkTrace(BaseModel):
    """Several tokens computed by one iteration."""

    at_s: float
    tokens: int


class PreemptionTrace(BaseModel):
    """recovery: how the request was restored. tokens, blocks: what it had computed and held. predicted_s, actual_s:
    seconds that restoring it was predicted to take and took; null if unknown."""

    at_s: float
    recovery: Literal["recompute", "swap"]
    tokens: int
    blocks: int
    predicted_s: float | None
    actual_s: float | None


class PromptTrace(BaseModel):
    """One prompt of the call; while it runs, what is known so far. Seconds count from the call's arrival; null: it has
    not happened, or not yet.

    first_scheduled_s: the end of waiting. first_token_s: the end of prefill. grammar_s: spent on compiling the output's
    grammar, before the request could be queued. waits, chunks, preempted: the last ones; preemptions and num_chunks
    count all. iterations: those that computed tokens of it. drafted_tokens, accepted_tokens: draft tokens that were
    computed, and those of them that were accepted; null if there were none.
    """

    index: int
    outcome: TraceOutcome
    prompt_tokens: int
    cached_tokens: int | None = None
    output_tokens: int | None = None
    n: int
    max_tokens: int
    grammar_s: float | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    iterations: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    waits: list[WaitTrace] = []
    num_chunks: int | None = None
    chunks: list[ChunkTrace] = []
    preemptions: int | None = None
    preempted: list[PreemptionTrace] = []


class RequestTrace(BaseModel):
    """`id` is the id in the call's answer, `request_id` its `X-Request-Id`. deterministic: computed independently of
    the batch. finish_reasons: how many of its choices have ended for each reason."""

    id: str
    request_id: str
    object: Literal["request.trace"] = "request.trace"
    created: int
    model: str
    adapter: str | None = None
    deterministic: bool = False
    outcome: TraceOutcome
    finish_reasons: dict[str, int] = {}
    prompts: list[PromptTrace]
