from __future__ import annotations

import math
from dataclasses import replace

import pytest

from service.core.events import FinalEvent, Outcome, TokenEvent
from service.core.iteration import IterationPlan, IterationResult
from service.core.request import FinishReason
from service.core.sequence import Sequence
from service.core.token_logprobs import TokenLogprobs
from service.engine.outbox import one_by_one
from service.kvcache.prefix_cache import ChainedPrefixCache
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_model import ToyExecutor, oracle


def test_finish_reasons():
    harness = Harness()
    harness.add(harness.request((1,), 5))
    harness.add(harness.request((1,), 100, stops=frozenset(range(0, 1000, 2))))
    harness.run()
    assert harness.reasons["request-0", 0] is FinishReason.LENGTH
    assert harness.reasons["request-1", 0] is FinishReason.STOP
    assert harness.tokens["request-1", 0][-1] % 2 == 0
    assert {f.outcome for f in harness.finals.values()} == {Outcome.FINISHED}


def test_choices_that_were_to_have_no_tokens_have_ended_by_their_length():
    harness = Harness()
    harness.add(harness.request((1, 2), 0, n=2))
    harness.run()
    ((_, outcome, reasons),) = harness.sink.requests
    assert outcome is Outcome.FINISHED
    assert reasons == (FinishReason.LENGTH, FinishReason.LENGTH)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failed_draw_ends_its_own_request_only(overlap: bool):
    harness = Harness(executor=FaultyExecutor(frozenset(), unlucky=frozenset({1})), overlap=overlap)
    for _ in range(3):
        harness.add(harness.request((1, 2), 4))
    harness.run()
    assert [harness.finals[f"request-{i}"].outcome for i in range(3)] == [
        Outcome.FINISHED,
        Outcome.FAILED,
        Outcome.FINISHED,
    ]
    harness.check_against_oracle("request-0")
    harness.check_against_oracle("request-2")
    assert harness.blocks.pool.num_used == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failed_draw_counts_as_no_token(overlap: bool):
    drawn = oracle((1, 2), 0, 12, frozenset(), VOCABULARY)
    executor = FaultyExecutor(frozenset(), failing_ids=frozenset({drawn[7]}))
    harness = Harness(executor=executor, overlap=overlap)
    harness.add(harness.request((1, 2), 12))
    harness.run()
    final = harness.finals["request-0"]
    assert final.outcome is Outcome.FAILED
    assert final.stats.num_output_tokens == final.stats.num_tokens_of_longest == 7
    assert harness.tokens["request-0", 0] == drawn[:7]


class BrokenForOne(ChainedPrefixCache):
    """Raises at the output of one sequence, as a bug of ours would."""

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        if sequence.sequence_id == 1 and num_tokens > 6:
            raise RuntimeError("broken")
        super().insert(sequence, salt, block_ids, num_tokens)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_fault_at_one_requests_token_costs_that_request_only(overlap: bool):
    harness = Harness(prefix_cache=BrokenForOne(4), overlap=overlap)
    for seed in range(3):
        harness.add(harness.request((1, 2), 12, seed=seed))
    harness.run()
    outcomes = [harness.finals[f"request-{i}"].outcome for i in range(3)]
    assert outcomes == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    for i in range(3):
        harness.check_against_oracle(f"request-{i}", complete=i != 1)
    assert harness.blocks.pool.num_used == 0


def test_only_a_requests_last_token_and_those_of_several_choices_are_told_in_full():
    harness = Harness()
    harness.add(harness.request((1, 2), 4))
    harness.add(harness.request((1, 2), 3, n=2))
    for _ in range(10):
        harness.engine.step()
    events = list(one_by_one(harness.engine.requests.events.take()))
    kinds = [type(event) for request_id, event in events if request_id == "request-0"]
    assert kinds == [int, int, int, TokenEvent, FinalEvent]
    assert [type(event) for request_id, event in events if request_id == "request-1"] == [TokenEvent] * 6 + [FinalEvent]


class Scoring(ToyExecutor):
    """Scores prompts: a token's logprob is minus its id; the last one of `unlucky` is not a number."""

    def __init__(self, unlucky: int) -> None:
        super().__init__(64, 4, VOCABULARY)
        self._unlucky = unlucky

    def execute(self, plan: IterationPlan) -> IterationResult:
        scored = []
        for item in plan.scheduled:
            values = [-float(target) for target in item.targets]
            if item.sequence_id == self._unlucky and values:
                values[-1] = math.nan
            scored.append((item.sequence_id, tuple(TokenLogprobs(value, (), 1) for value in values)))
        return replace(super().execute(plan), prompt_logprobs=tuple(scored))


def test_a_prompt_whose_scores_are_no_numbers_fails_and_no_other():
    harness = Harness(executor=Scoring(unlucky=1), max_num_batched_tokens=9)
    for _ in range(3):
        harness.add(harness.request((1, 2, 3, 4, 5, 6), 3, num_prompt_logprobs=0))
    harness.run()
    outcomes = [harness.finals[f"request-{i}"].outcome for i in range(3)]
    assert outcomes == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    assert [entry.chosen for entry in harness.prompt_logprobs["request-0"]] == [-2, -3, -4, -5, -6]
    assert "request-1" not in harness.prompt_logprobs
    assert harness.blocks.pool.num_used == 0


def test_who_leaves_the_batch_and_joins_it_again_gets_the_token_that_was_under_way():
    harness = Harness(overlap=True)
    harness.add(harness.request((1, 2, 3), 40))
    for number in range(30):
        harness.step()
        if number % 5 == 4:
            harness.scheduler.lanes.dissolve(harness.scheduler.pool.running)
    harness.run()
    harness.check_against_oracle("request-0")
