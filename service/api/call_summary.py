"""One call in one log line: who asked for what, and how long it took. Never its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.api.call_trace import CallTrace
from service.core.stats import RequestStats


class CallSummary(NamedTuple):
    """All prompts of a call together: sums of tokens and preemptions, the maximum of seconds, the mean of the time per
    output token. None: there is no such figure, or the client left before it was known.

    finish: how many choices ended for which reason. ttft_s, queue_s: from the call's arrival to the first token, and to
    the first iteration. tpot_s: between two tokens of a choice. deferral_s: waited for a fine-tuning job.
    """

    id: str
    model: str
    adapter: str | None
    outcome: str
    finish: dict[str, int]
    prompts: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    queue_s: float | None
    deferral_s: float
    preemptions: int


def summarized(call: CallTrace) -> CallSummary:
    """Of the prompts that have ended."""
    ended = [stats for _, stats in call.ended]
    times = [time for stats in ended if (time := stats.time_per_output_token_s) is not None]
    return CallSummary(
        id=call.head.call_id,
        model=call.model,
        adapter=call.adapter,
        outcome=call.outcome,
        finish={reason.value: count for reason, count in call.finish_reasons.items()},
        prompts=call.num_prompts,
        prompt_tokens=call.num_prompt_tokens,
        cached_tokens=sum(stats.num_cached_tokens for stats in ended),
        output_tokens=sum(stats.num_output_tokens for stats in ended),
        ttft_s=_longest([_since_arrival(stats, stats.first_token_s) for stats in ended]),
        tpot_s=round(sum(times) / len(times), 6) if times else None,
        queue_s=_longest([_since_arrival(stats, stats.first_scheduled_s) for stats in ended]),
        deferral_s=round(max([_deferral_s(stats) for stats in ended], default=0.0), 6),
        preemptions=sum(stats.num_preemptions for stats in ended),
    )


def _since_arrival(stats: RequestStats, time_s: float | None) -> float | None:
    return None if time_s is None else time_s - stats.arrival_s


def _longest(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return round(max(known), 6) if known else None


def _deferral_s(stats: RequestStats) -> float:
    return sum(wait.until_s - wait.since_s for wait in stats.waits if wait.reason == "deferral")
