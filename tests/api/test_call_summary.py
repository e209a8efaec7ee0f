from __future__ import annotations

from typing import Any

from service.api.call_head import CallHead
from service.api.call_summary import summarized
from service.api.call_trace import CallTrace
from service.core.events import FinalEvent, Outcome
from service.core.request import FinishReason, Request
from service.core.request_journal import Wait
from service.core.sampling_params import SamplingParams
from service.core.stats import RequestStats

HEAD = CallHead("cmpl-1", 0, 10.0, "team")


def call(num_prompts: int) -> CallTrace:
    sampling = SamplingParams(max_tokens=8)
    return CallTrace(HEAD, "model", [Request(f"r{i}", (1, 2, 3), sampling, 10.0) for i in range(num_prompts)])


def stats(**fields: Any) -> RequestStats:
    facts: dict[str, Any] = {
        "num_prompt_tokens": 3,
        "num_cached_tokens": 1,
        "num_output_tokens": 5,
        "n": 1,
        "max_tokens": 8,
        "arrival_s": 10.0,
        "first_scheduled_s": 10.5,
        "first_token_s": 11.0,
        "finished_s": 13.0,
        "num_preemptions": 1,
    }
    return RequestStats(**facts | fields)


def test_sums_of_tokens_the_longest_of_seconds_and_the_mean_between_tokens():
    of_two = call(2)
    waits = (Wait(10.0, 10.5, "deferral"), Wait(11.0, 11.5, "memory"), Wait(12.0, 12.25, "deferral"))
    of_two.note_end(0, FinalEvent(Outcome.FINISHED, stats(waits=waits)))
    of_two.note_end(1, FinalEvent(Outcome.FINISHED, stats(first_scheduled_s=11.0, first_token_s=12.0)))
    of_two.note_finish(FinishReason.STOP)
    of_two.note_finish(FinishReason.LENGTH)
    told = summarized(of_two)
    assert (told.prompts, told.prompt_tokens, told.cached_tokens, told.output_tokens) == (2, 6, 2, 10)
    assert (told.queue_s, told.ttft_s, told.tpot_s) == (1.0, 2.0, (0.5 + 0.25) / 2)
    assert (told.deferral_s, told.preemptions, told.outcome) == (0.75, 2, "finished")
    assert told.finish == {"stop": 1, "length": 1}


def test_what_did_not_come_to_pass_is_not_told():
    left = call(1)
    left.note_end(0, None)
    told = summarized(left)
    assert (told.outcome, told.prompt_tokens, told.output_tokens) == ("aborted", 3, 0)
    assert told.queue_s is told.ttft_s is told.tpot_s is None
    one_token = call(1)
    one_token.note_end(0, FinalEvent(Outcome.FINISHED, stats(num_output_tokens=1)))
    assert summarized(one_token).tpot_s is None
