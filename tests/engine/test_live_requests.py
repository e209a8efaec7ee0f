from __future__ import annotations

import pytest

from service.core.events import FinalEvent, Outcome
from service.engine.live_requests import LiveRequests
from service.engine.outbox import one_by_one
from service.errors import ServerError
from tests.engine.harness import Harness
from tests.engine.test_result_applier import BrokenForOne


def test_a_journal_tells_what_happened():
    """Prompt chunks, a wait for memory, preemptions with their cost: a bounded number of facts for the trace."""
    harness = Harness(num_blocks=10, block_size=4, max_num_batched_tokens=16)
    for seed in range(3):
        assert harness.add(harness.request(tuple(range(50 * seed, 50 * seed + 20)), 16, seed=seed))
    harness.run()
    by_arrival = sorted((stats for stats, _, _ in harness.sink.requests), key=lambda stats: stats.finished_s)
    assert sum(stats.num_preemptions for stats in by_arrival) == sum(len(stats.preemptions) for stats in by_arrival) > 0
    for stats in by_arrival:
        assert len(stats.waits) == 1 + stats.num_preemptions
        assert stats.waits[0].until_s == stats.first_scheduled_s
        assert sum(chunk.num_tokens for chunk in stats.chunks) >= 20
        # From its first chunk to its last token it was in every iteration that it did not wait through.
        assert stats.num_iterations >= stats.num_output_tokens
    assert by_arrival[0].num_iterations == 2 + 15, "20 tokens by 16 an iteration, then one a token"
    assert "memory" in {wait.reason for stats in by_arrival for wait in stats.waits}


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_whatever_ends_a_request_ends_it_once_and_frees_what_it_held(num_steps: int):
    harness = Harness()
    harness.add(harness.request((1, 2, 3), 20, n=2))
    for _ in range(num_steps):
        harness.engine.step()
    harness.engine.requests.abort("request-0")
    harness.engine.requests.abort("request-0")
    harness.engine.requests.fail("request-0", ServerError("too late"))
    harness.engine.requests.stop_choice("request-0", 0)
    while harness.engine.has_work:
        harness.engine.step()
    finals = [event for _, event in one_by_one(harness.engine.requests.events.take()) if isinstance(event, FinalEvent)]
    assert [final.outcome for final in finals] == [Outcome.ABORTED]
    assert harness.blocks.pool.num_used == 0
    assert harness.engine.requests.request_ids() == []


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_known_so_far_counts_every_token_that_was_told(overlap: bool):
    """Including tokens that only the decode batch has counted."""
    harness = Harness(overlap=overlap)
    requests = [harness.request((1, 2, 3), 20, n=n) for n in (1, 1, 2)]
    ids = [request.request_id for request in requests]
    for request in requests:
        harness.add(request)
    assert [stats.num_output_tokens for stats in harness.engine.requests.stats_so_far(ids).values()] == [0, 0, 0]
    seen = list[int]()
    while len(harness.finals) < 3:
        harness.step()
        told = {
            request.request_id: sum(
                len(tokens) for (of, _), tokens in harness.tokens.items() if of == request.request_id
            )
            for request in requests
        }
        known = harness.engine.requests.stats_so_far([*ids, "another"])
        assert {each: stats.num_output_tokens for each, stats in known.items()} == {each: told[each] for each in known}
        assert sorted(known) == sorted(set(ids) - set(harness.finals))
        seen += [stats.num_output_tokens for stats in known.values()]
    assert max(seen) > 15


def test_a_choice_whose_text_is_complete_ends_alone():
    harness = Harness()
    harness.add(harness.request((1, 2, 3), 9, n=2))
    harness.engine.requests.stop_choice("request-0", 0)  # before its first token: without effect
    for _ in range(3):
        harness.step()
    harness.engine.requests.stop_choice("request-0", 0)
    harness.run()
    assert len(harness.tokens["request-0", 0]) < 9
    assert len(harness.tokens["request-0", 1]) == 9
    assert harness.finals["request-0"].outcome is Outcome.FINISHED


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_choice_that_has_computed_nothing_or_half_a_prompt_may_be_stopped(num_steps: int):
    """And no request finds what it has not computed in the prefix cache."""
    harness = Harness(max_num_batched_tokens=9)
    prompt = tuple(range(17))
    harness.add(harness.request(prompt, 5))
    for _ in range(num_steps):
        harness.step()
    harness.engine.requests.stop_choice("request-0", 0)
    harness.collect()
    assert harness.finals["request-0"].outcome is Outcome.FINISHED
    harness.add(harness.request(prompt, 5))
    harness.run()
    assert harness.finals["request-1"].stats.num_cached_tokens == 8 * num_steps
    harness.check_against_oracle("request-1")


def test_what_a_choice_said_before_its_text_ended_it_is_found_again():
    harness = Harness(num_blocks=64, overlap=True)
    harness.add(harness.request((1, 2, 3), 40))
    while len(harness.tokens["request-0", 0]) < 22:
        harness.step()
    harness.engine.requests.stop_choice("request-0", 0)
    harness.run()
    said = (1, 2, 3, *harness.tokens["request-0", 0])
    harness.add(harness.request(said, 2))
    harness.run()
    assert harness.finals["request-1"].stats.num_cached_tokens == (len(said) - 1) // 4 * 4
    harness.check_against_oracle("request-1")


@pytest.mark.parametrize("end", [LiveRequests.abort, lambda requests, request_id: requests.stop_choice(request_id, 0)])
def test_a_fault_at_one_requests_end_costs_that_request_only(end):
    harness = Harness(prefix_cache=BrokenForOne(4))
    for seed in range(3):
        harness.add(harness.request((1, 2), 12, seed=seed))
    for _ in range(9):
        harness.step()
    end(harness.engine.requests, "request-1")
    harness.run()
    outcomes = [harness.finals[f"request-{i}"].outcome for i in range(3)]
    assert outcomes == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    assert harness.blocks.pool.num_used == 0
