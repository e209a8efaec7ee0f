"""Speculation through the whole engine: each request gets its own tokens, and faults put in on purpose are caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from service.core.sequence import Sequence
from service.engine import sequence_results
from service.engine.sequence_results import SequenceResults
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.lane_scheduling import LaneScheduling
from service.scheduler.speculation import Speculation
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_drafts import ToyDrafts
from tests.engine.toy_grammar import ToyGrammar, ToyMasker

Patch = pytest.MonkeyPatch
NUM_DRAFTS = 3


def scenario(overlap: bool, num_lanes: int = 1) -> Harness:
    """Requests of every kind in a small cache, half of the drafts right, checked against the oracle."""
    chance = random.Random(1)
    harness = Harness(
        num_blocks=26,
        block_size=4,
        max_num_seqs=10,
        max_num_batched_tokens=40,
        overlap=overlap,
        num_lanes=num_lanes,
        masker=ToyMasker(VOCABULARY),
        speculation=Speculation(NUM_DRAFTS, 10, lambda: ToyDrafts(chance, 0.75, VOCABULARY)),
    )
    prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    harness.add(harness.request(prompt, 30))
    harness.add(harness.request(prompt, 24, seed=1, num_logprobs=0, num_prompt_logprobs=0))
    harness.add(harness.request(prompt, 14, n=2, seed=2))
    harness.add(harness.beam_request((1, 2, 3), 6, width=2, n=2))
    harness.add(harness.request((9, 9), 40, seed=4, stops=frozenset(range(0, 1000, 15))))
    harness.add(harness.request((5, 6), 17, seed=5, bad_words=((1001, 1002),)))
    harness.add(harness.request((5, 7), 17, seed=6, presence_penalty=0.5))
    formed = replace(harness.request((7, 7), 12, seed=7), grammar=ToyGrammar(9, 2))
    harness.requests[formed.request_id] = formed
    harness.add(formed)
    harness.run(max_steps=600)
    harness.add(harness.request((*prompt, *harness.tokens["request-0", 0], 1), 9, seed=8))
    harness.run(max_steps=100)
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    harness.check_nothing_left()
    return harness


@pytest.mark.parametrize(("overlap", "num_lanes"), [(False, 1), (True, 1), (False, 2)])
def test_each_request_gets_the_tokens_that_it_gets_without_drafts(overlap: bool, num_lanes: int):
    harness = scenario(overlap, num_lanes)
    drafts = [each for iteration in harness.sink.iterations for each in iteration.drafts]
    assert {0, 1, NUM_DRAFTS} <= {num_accepted for _, num_accepted in drafts}, "none is right, some, all"
    ended = {stats.max_tokens: stats for stats, _, _ in harness.sink.requests}
    assert sum(stats.num_preemptions for stats in ended.values()) > 0
    for max_tokens, drafts_at_all in ((30, True), (24, True), (14, False), (6, False), (17, False), (12, False)):
        assert (ended[max_tokens].num_drafted > 0) is drafts_at_all
    assert sum(stats.num_drafted for stats in ended.values()) == sum(num for num, _ in drafts)
    assert sum(stats.num_accepted for stats in ended.values()) == sum(num for _, num in drafts)
    of_first = ended[30]
    if not of_first.num_preemptions:
        assert of_first.num_iterations == of_first.num_chunks + 29 - of_first.num_accepted


def test_iterations_of_a_request_are_as_many_fewer_as_drafts_were_right():
    chance = random.Random(2)
    drafts = Speculation(NUM_DRAFTS, 8, lambda: ToyDrafts(chance, 0.8, VOCABULARY))
    harness = Harness(speculation=drafts)
    harness.add(harness.request((1, 2, 3), 40))
    harness.run()
    (stats, _, _) = harness.sink.requests[0]
    assert stats.num_accepted > 15
    assert len(harness.sink.iterations) == stats.num_iterations == 40 - stats.num_accepted
    assert [iteration.batch_size for iteration in harness.sink.iterations] == [1] * stats.num_iterations
    assert sum(iteration.generated_tokens for iteration in harness.sink.iterations) == stats.num_output_tokens == 40
    harness.check_against_oracle("request-0")
    harness.add(harness.request((1, 2, 3, *harness.tokens["request-0", 0], 1), 5, seed=8))
    harness.run()
    assert harness.sink.requests[1][0].num_cached_tokens == 40, "what drafts have computed is in the prefix cache"
    harness.check_against_oracle("request-1")


def a_wrong_draft_accepted(patch: Patch) -> None:
    num_equal = sequence_results.num_equal
    patch.setattr(sequence_results, "num_equal", lambda guessed, came: min(len(guessed), num_equal(guessed, came) + 1))


def a_draw_behind_a_wrong_draft_told(patch: Patch) -> None:
    patch.setattr(sequence_results, "num_equal", lambda guessed, came: len(guessed))


def an_accepted_draft_computed_no_more(patch: Patch) -> None:
    """The sequence goes on from its last token, with a gap before it in the cache."""
    apply = SequenceResults._apply_drafts

    def too_far(self, item, drafts, draws, group, tokens):
        apply(self, item, drafts, draws, group, tokens)
        for sequence in group.live:
            sequence.num_computed_tokens = item.num_computed_tokens + len(draws)
            sequence.token_ids += [1] * (sequence.num_computed_tokens + 1 - len(sequence.token_ids))

    patch.setattr(SequenceResults, "_apply_drafts", too_far)


def no_room_made_for_drafts(patch: Patch) -> None:
    patch.setattr(BlockGrowth, "room_for", lambda self, sequence, num_tokens: num_tokens)


def the_next_iteration_not_held_back(patch: Patch) -> None:
    decide, begin = LaneScheduling.decide, LaneScheduling.begin

    def as_if_plain(self, draft, shortage):
        computes = decide(self, draft, shortage)
        draft.has_drafts = False
        return computes

    def not_held_back(self, draft):
        begin(self, draft)
        for advance in draft.advances:
            sequence: Sequence = advance.sequence
            if not advance.draws and sequence.num_tokens_to_compute == 0:
                sequence.num_computed_tokens -= 1

    patch.setattr(LaneScheduling, "decide", as_if_plain)
    patch.setattr(LaneScheduling, "begin", not_held_back)


@pytest.mark.parametrize(
    ("fault", "overlap"),
    [
        (a_wrong_draft_accepted, False),
        (a_wrong_draft_accepted, True),
        (a_draw_behind_a_wrong_draft_told, False),
        (an_accepted_draft_computed_no_more, False),
        (no_room_made_for_drafts, False),
        (the_next_iteration_not_held_back, True),
    ],
)
def test_a_fault_of_drafts_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap)
