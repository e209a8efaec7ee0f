from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import replace

from service.api.call_head import CallHead
from service.api.call_trace import MAX_TRACES, CallTrace, TraceStore
from service.core.events import FinalEvent, Outcome
from service.core.request import Request
from service.core.request_journal import Chunk, Wait
from service.core.sampling_params import SamplingParams
from service.core.stats import PreemptionStats, RequestStats
from service.errors import ServerError

HEAD = CallHead("c", 1, 10.0, "")
REQUESTS = [Request(f"r{index}", (1, 2), SamplingParams(max_tokens=5), 10.0) for index in range(2)]
STATS = RequestStats(
    num_prompt_tokens=2,
    num_cached_tokens=1,
    num_output_tokens=4,
    n=1,
    max_tokens=5,
    arrival_s=10.0,
    first_scheduled_s=10.5,
    first_token_s=None,
    finished_s=12.25,
    num_preemptions=3,
    preemptions=(PreemptionStats("swap", 70, 5, 11.0, 0.01, None),),
    waits=(Wait(10.0, 10.5, "memory"),),
    chunks=(Chunk(10.5, 2),),
    num_chunks=1,
    num_iterations=4,
)


def test_a_trace_fills_as_prompts_end() -> None:
    trace = CallTrace(HEAD, "m", REQUESTS)
    assert trace.show().outcome == "running"
    trace.note_end(0, FinalEvent(Outcome.FINISHED, STATS))
    first, second = trace.show().prompts
    assert (first.first_scheduled_s, first.first_token_s, first.finished_s) == (0.5, None, 2.25)
    assert (first.cached_tokens, first.output_tokens, first.preemptions) == (1, 4, 3)
    assert first.waits[0].model_dump() == {"since_s": 0.0, "until_s": 0.5, "reason": "memory"}
    assert first.chunks[0].model_dump() == {"at_s": 0.5, "tokens": 2}
    preempted = {"at_s": 1.0, "recovery": "swap", "tokens": 70, "blocks": 5, "predicted_s": 0.01, "actual_s": None}
    assert first.preempted[0].model_dump() == preempted
    assert (first.num_chunks, first.iterations) == (1, 4)
    assert (second.outcome, second.finished_s, second.prompt_tokens) == ("running", None, 2)
    assert trace.show().outcome == "running"


def test_what_runs_is_shown_as_far_as_it_is_known_and_its_end_stands() -> None:
    trace = CallTrace(HEAD, "m", REQUESTS)
    trace.note_end(1, None)
    assert trace.running_ids == ["r0"]
    trace.note_progress({"r0": STATS, "r1": STATS, "r2": STATS})
    first, second = trace.show().prompts
    assert (first.outcome, first.output_tokens, first.first_scheduled_s, first.finished_s) == ("running", 4, 0.5, None)
    assert (second.outcome, second.output_tokens) == ("aborted", None)
    trace.note_end(0, FinalEvent(Outcome.FINISHED, replace(STATS, num_output_tokens=5)))
    trace.note_progress({"r0": STATS})
    (first, _), rest = trace.show().prompts, trace.running_ids
    assert (first.outcome, first.output_tokens, first.finished_s, rest) == ("finished", 5, 2.25, [])


def test_the_worst_outcome_is_the_calls() -> None:
    trace = CallTrace(HEAD, "m", REQUESTS)
    trace.note_end(0, None)
    assert trace.show().outcome == "aborted"
    trace.note_end(1, FinalEvent(Outcome.FAILED, STATS, ServerError("x")))
    assert trace.show().outcome == "failed"


def test_a_failed_calls_error_and_with_it_what_the_call_has_held_is_freed() -> None:
    """A thousand traces are kept; the prompts of a thousand failed calls would be too much."""
    trace, error = CallTrace(HEAD, "m", REQUESTS), ServerError("x")
    trace.note_end(0, FinalEvent(Outcome.FAILED, STATS, error))

    def fail(held: set[int], error: ServerError) -> None:
        raise error

    held = set(range(9))
    known = weakref.ref(held)
    with contextlib.suppress(ServerError):
        fail(held, error)
    del held, error
    gc.collect()
    assert known() is None
    assert trace.show().prompts[0].outcome == "failed"


def trace(call_id: str, client: str) -> CallTrace:
    head = CallHead(call_id, created=1, arrival_s=10.0, client=client)
    return CallTrace(head, "m", [Request("r0", (1, 2), SamplingParams(max_tokens=5), 10.0)])


def test_keeps_the_last_ones() -> None:
    store = TraceStore()
    for index in range(MAX_TRACES + 2):
        store.add(trace(f"c{index}", ""))
    kept = [store.get(f"c{index}", "") is not None for index in range(MAX_TRACES + 2)]
    assert kept == [False, False, *[True] * MAX_TRACES]


def test_shows_a_trace_to_its_owner_only() -> None:
    store = TraceStore()
    store.add(trace("c", "ann"))
    assert store.get("c", "ann") is not None
    assert store.get("c", "bob") is None
    assert store.get("c", "") is None


def named(call_id: str, request_id: str, client: str = "") -> CallTrace:
    head = CallHead(call_id, 1, 10.0, client, request_id)
    return CallTrace(head, "m", [Request("r0", (1, 2), SamplingParams(max_tokens=5), 10.0)])


def test_a_request_id_that_is_used_again_means_the_last_call_and_no_other_clients() -> None:
    store = TraceStore()
    first, second, other = named("c1", "same"), named("c2", "same"), named("c3", "same", "bob")
    for each in (first, second, other):
        store.add(each)
    assert (store.get("same", ""), store.get("c1", ""), store.get("same", "bob")) == (second, first, other)
    for index in range(MAX_TRACES - 2):
        store.add(named(f"d{index}", f"e{index}"))
    assert (store.get("same", ""), store.get("c1", "")) == (second, None), "the first one's end leaves the second alone"
    for index in range(MAX_TRACES):
        store.add(named(f"f{index}", "again"))
    assert store.get("same", "") is None
    assert len(store._by_id) == MAX_TRACES + 1, "nothing is kept of those that went"
