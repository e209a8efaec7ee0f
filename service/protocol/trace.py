"""GET /v1/requests/{id}/trace: where the time of a request went."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

TraceOutcome = Literal["running", "finished", "aborted", "failed"]


class PromptTrace(BaseModel):
    """One prompt of the call. Seconds count from the call's arrival; null: it did not come to that, or not yet.

    first_scheduled_s: the end of waiting. first_token_s: the end of computing the prompt.
    """

    index: int
    outcome: TraceOutcome
    prompt_tokens: int
    cached_tokens: int | None = None
    output_tokens: int | None = None
    n: int
    max_tokens: int
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    preemptions: int | None = None


class RequestTrace(BaseModel):
    """`id` is the id in the call's answer."""

    id: str
    object: Literal["request.trace"] = "request.trace"
    created: int
    model: str
    outcome: TraceOutcome
    prompts: list[PromptTrace]
