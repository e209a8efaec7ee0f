"""POST /v1/completions/render and /v1/chat/completions/render: the engine's requests, as vLLM writes them."""

from __future__ import annotations

from pydantic import BaseModel


class RenderedSampling(BaseModel):
    """How each choice would be sampled and ended, with the server's defaults. seed: null if the client gave none."""

    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    stop: list[str]
    stop_token_ids: list[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int | None
    prompt_logprobs: int | None
    thinking_token_budget: int | None


class RenderedPrompt(BaseModel):
    """One prompt. features: of images and audio; always null."""

    request_id: str
    model: str
    token_ids: list[int]
    features: None
    sampling_params: RenderedSampling
    stream: bool
    cache_salt: str | None
    priority: int
