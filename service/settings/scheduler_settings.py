"""Settings of the scheduler: limits of an iteration and of the queue, policies, preemption."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ByteSize, Field, FiniteFloat, model_validator

from service.config import SchedulerConfig
from service.settings.token_count import TokenCount


class SchedulerSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    max_num_seqs: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="maximum number of sequences in one iteration (256; 512 or 1024 on a GPU with much memory)",
    )
    max_num_batched_tokens: TokenCount | None = Field(
        None,
        ge=2,
        description="maximum number of tokens in one iteration (2048 on a GPU, 4096 on one with much memory, 512 on"
        " a CPU); must exceed max-num-seqs",
    )
    overlap: bool | None = Field(None, description="launch the next iteration while one runs; on a GPU if not set")
    inter_token_target_ms: FiniteFloat | None = Field(
        None,
        gt=0,
        description="target for the inter-token latency of running requests, kept by smaller prefill chunks; no"
        " target if not set",
    )
    finetuning_mode: Literal["deferred", "interleaved"] = Field(
        "deferred",
        description="when fine-tuning jobs compute: deferred, while no request runs; interleaved, also between the"
        " tokens of running requests, as far as inter-token-target-ms leaves time",
    )
    deferral_bound: float = Field(
        0.1,
        ge=0,
        description="in mode deferred, the most seconds a request may wait for a fine-tuning iteration when no other"
        " request runs; 0: requests first, inf: the job first",
    )
    speculation: Literal["none", "ngram"] = Field(
        "none",
        description="ngram: speculative decoding with drafts by prompt lookup, where it is predicted to pay off",
    )
    num_speculative_tokens: int = Field(4, ge=1, le=16, description="draft tokens per sequence and iteration")
    scheduling_policy: Literal["fcfs", "priority", "fair", "shares"] = Field(
        "fcfs",
        description="order of requests: first come first served, the request's priority, AdaptiveLLM's fairness, or"
        " equal token shares per API key",
    )
    priority_order: Literal["higher-first", "lower-first"] = Field(
        "higher-first", description="which priority goes first; lower-first is vLLM's order"
    )
    admission_policy: Literal["on-demand", "reserve", "forecast"] = Field(
        "on-demand",
        description="when a request is admitted: its current tokens fit, all tokens it may need fit (ORCA), or by"
        " forecast (LightLLM)",
    )
    preemption: Literal["recompute", "swap", "adaptive"] = Field(
        "recompute",
        description="how a preempted request resumes: recompute, swap, or the cheaper of the two (adaptive)",
    )
    max_preemptions: int = Field(
        8, ge=1, description="after this many preemptions a request is spared, as long as another one can be preempted"
    )
    swap_space: ByteSize = Field(
        ByteSize(4 * 1024**3), ge=0, description="host memory for swapped requests, if preemption swaps"
    )
    swap_compression: Literal["none", "fp8"] = Field(
        "none", description="fp8: swap half the bytes of bf16; keys and values return with an error of up to 1/16"
    )
    watermark: float = Field(0.01, ge=0, lt=1, description="share of the KV blocks that admission keeps free")
    max_waiting_requests: int = Field(1024, ge=1, description="maximum number of waiting requests; beyond it, 503")
    max_waiting_tokens: TokenCount | None = Field(
        None,
        ge=1,
        description="maximum number of waiting prompt tokens, shared prefixes counted once; beyond it, 503; by the"
        " host's memory if not set",
    )
    max_waiting_seconds: FiniteFloat = Field(
        600.0, gt=0, description="a request that waits longer for its first iteration gets 503"
    )

    @model_validator(mode="after")
    def _check_finetuning_mode(self) -> SchedulerSettings:
        if self.finetuning_mode == "interleaved" and self.inter_token_target_ms is None:
            raise ValueError("finetuning-mode interleaved needs inter-token-target-ms, to know what time there is")
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> SchedulerSettings:
        num_seqs, budget = self.max_num_seqs, self.max_num_batched_tokens
        if num_seqs is not None and budget is not None and budget <= num_seqs:
            raise ValueError(
                f"max-num-batched-tokens ({budget}) must exceed max-num-seqs ({num_seqs}), or a prompt could not"
                " advance beside a full batch"
            )
        return self

    def scheduler_config(
        self, default_num_seqs: int, default_num_batched_tokens: int, default_waiting_tokens: int
    ) -> SchedulerConfig:
        """The first two defaults depend on the device; each is adjusted to the other if that was set."""
        if self.max_num_batched_tokens is not None:
            default_num_seqs = min(default_num_seqs, self.max_num_batched_tokens - 1)
        num_seqs = self.max_num_seqs or default_num_seqs
        budget = self.max_num_batched_tokens or max(default_num_batched_tokens, 2 * num_seqs)
        return SchedulerConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=budget,
            watermark=self.watermark,
            max_waiting_requests=self.max_waiting_requests,
            max_waiting_tokens=self.max_waiting_tokens or default_waiting_tokens,
            max_waiting_s=self.max_waiting_seconds,
            max_preemptions=self.max_preemptions,
        )
