from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.core.request import FinishReason
from service.core.sampling_params import BeamParams, SamplingParams
from service.engine.beam_search import BeamSearch, Continuation
from tests.engine.harness import Harness
from tests.engine.toy_model import beam_oracle, toy_top
from tests.examples import examples

EOS = 9


def params(width: int, max_tokens: int = 10, **beam: object) -> SamplingParams:
    return SamplingParams(
        max_tokens,
        n=width,
        temperature=0.0,
        stop_token_ids=frozenset({EOS}),
        num_logprobs=width + 1,
        beam=BeamParams(width, **beam),
    )


def test_the_best_sums_go_on_and_a_beam_that_goes_on_keeps_its_place():
    search = BeamSearch(params(2))
    assert search.advance([[(1, -0.1), (2, -0.5), (3, -2.0)]]) == [Continuation(0, 1), Continuation(0, 2)]
    # sums: beam 0: -1.1, -1.2; beam 1: -0.6, -1.5
    tops = [[(4, -1.0), (5, -1.1), (6, -9.0)], [(4, -0.1), (5, -1.0), (6, -9.0)]]
    assert search.advance(tops) == [Continuation(0, 4), Continuation(1, 4)]
    # both of the best come from beam 1: its first child stays, the second moves into the place of beam 0
    tops = [[(4, -5.0), (5, -6.0), (6, -9.0)], [(7, -0.1), (8, -0.2), (6, -9.0)]]
    assert search.advance(tops) == [Continuation(1, 8), Continuation(1, 7)]


def test_only_the_first_ranks_may_finish_and_finished_ones_do_not_go_on():
    search = BeamSearch(params(2))
    search.advance([[(1, -0.1), (2, -0.5), (3, -2.0)]])
    # ranks: (0, EOS) -0.2 finishes; (0, 4) -0.4 goes on; (1, EOS) -0.6 is third and lost; (1, 5) -0.7 goes on
    going_on = search.advance([[(EOS, -0.1), (4, -0.3), (6, -9.0)], [(EOS, -0.1), (5, -0.2), (6, -9.0)]])
    assert going_on == [Continuation(0, 4), Continuation(1, 5)]
    (finished,) = search.best(2)
    assert finished.token_ids == (1, EOS)
    assert finished.finish_reason is FinishReason.STOP
    assert finished.score == pytest.approx(-0.2 / 2)


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "goes_on"),
    [(True, 1.0, False), (False, 1.0, False), (False, 2.0, False), ("never", 2.0, True), ("never", 0.0, False)],
)
def test_when_enough_is_enough(early_stopping: bool | str, length_penalty: float, goes_on: bool):
    """Two have finished, with lengths 1 and 2; the best live beam has -1.5 after two of ten tokens."""
    search = BeamSearch(params(2, early_stopping=early_stopping, length_penalty=length_penalty))
    assert search.advance([[(EOS, -0.2), (1, -0.5), (2, -0.6)]])
    going_on = search.advance([[(EOS, -0.1), (4, -1.0), (6, -9.0)], [(4, -1.0), (5, -1.2), (6, -9.0)]])
    assert bool(going_on) is goes_on


def test_the_last_token_finishes_all():
    search = BeamSearch(params(2, max_tokens=2))
    search.advance([[(1, -0.1), (2, -0.5), (3, -2.0)]])
    assert search.advance([[(4, -0.1), (EOS, -0.2), (6, -9.0)], [(4, -0.3), (5, -9.0), (6, -9.0)]]) == []
    assert [(h.token_ids, h.finish_reason) for h in search.best(2)] == [
        ((1, 4), FinishReason.LENGTH),
        ((1, EOS), FinishReason.STOP),
    ]


@settings(max_examples=examples(100), deadline=None)
@given(
    width=st.integers(2, 6),
    max_tokens=st.integers(1, 8),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
)
def test_step_by_step_is_the_definition(width, max_tokens, length_penalty, early_stopping, prompt):
    stops = frozenset({0, 9, 18})
    sampling = SamplingParams(
        max_tokens,
        n=width,
        stop_token_ids=stops,
        num_logprobs=width + len(stops),
        beam=BeamParams(width, length_penalty, early_stopping),
    )
    search, beams = BeamSearch(sampling), [list(prompt)]
    while beams:
        tops = [toy_top([(t, p) for p, t in enumerate(tokens)], width + len(stops)) for tokens in beams]
        beams = [[*beams[c.parent], c.token_id] for c in search.advance(tops)]
    assert [list(h.token_ids) for h in search.best(width)] == beam_oracle(prompt, sampling)


@pytest.mark.parametrize("num_logprobs", [0, 2])
def test_every_token_of_a_hypothesis_has_its_logprob(num_logprobs: int):
    search = BeamSearch(params(2, max_tokens=2, num_logprobs=num_logprobs))
    search.advance([[(1, -0.1), (2, -0.5), (3, -2.0)]])
    search.advance([[(4, -0.9), (EOS, -1.0), (6, -9.0)], [(4, -0.3), (5, -9.0), (6, -9.0)]])
    best, second = search.best(2)
    assert [entry.chosen for entry in best.logprobs] == [-0.5, -0.3]
    assert [entry.chosen for entry in second.logprobs] == [-0.1, -0.9]
    assert best.logprobs[1].top == ((4, -0.3), (5, -9.0))[:num_logprobs]
    assert best.score == pytest.approx(sum(entry.chosen for entry in best.logprobs) / 2)


def test_logprobs_come_with_the_tokens_at_the_end():
    harness = Harness(num_blocks=64, block_size=4)
    beam = BeamParams(3, num_logprobs=1)
    harness.add(harness.request((1, 2, 3), 5, n=2, temperature=0.0, num_logprobs=3, beam=beam))
    harness.run()
    for choice in range(2):
        harness.check_against_oracle("request-0", choice)
        assert [len(entry.top) for entry in harness.logprobs["request-0", choice]] == [1] * 5


def test_beams_share_what_they_have_in_common_and_give_all_back():
    harness = Harness(num_blocks=64, block_size=4)
    harness.add(harness.beam_request(tuple(range(8)), 12, width=4, n=2))
    harness.step()
    assert harness.blocks.pool.num_used == 2, "four beams on the prompt's two blocks"
    most = 0
    while harness.engine.has_work:
        harness.step()
        most = max(most, harness.blocks.pool.num_used)
    assert any(plan.copies for plan in harness.toy.plans)
    assert most < 2 + 4 * 3, "fewer than beams apart would hold"
    assert harness.blocks.pool.num_used == 0
    for choice in range(2):
        harness.check_against_oracle("request-0", choice)
    (stats, outcome, reasons) = harness.sink.requests[0]
    assert outcome is Outcome.FINISHED
    assert len(reasons) == 2
    assert stats.num_output_tokens == sum(len(harness.tokens["request-0", i]) for i in range(2))


def test_nothing_is_said_before_the_end_and_nothing_remains_of_an_aborted_search():
    harness = Harness(num_blocks=64, block_size=4)
    harness.add(harness.beam_request((1, 2, 3), 12, width=3))
    for _ in range(5):
        harness.step()
    assert not harness.tokens
    harness.engine.requests.stop_choice("request-0", 0)
    harness.step()
    assert not harness.finals, "a beam is no choice yet"
    harness.engine.requests.abort("request-0")
    harness.collect()
    harness.run()
    assert harness.finals["request-0"].outcome is Outcome.ABORTED
    assert harness.blocks.pool.num_used == 0
    assert not harness.engine.requests.searches


def test_beams_do_not_hold_up_the_others_where_iterations_overlap():
    harness = Harness(num_blocks=64, block_size=4, overlap=True)
    harness.add(harness.beam_request((1, 2, 3), 6, width=3))
    harness.add(harness.request((1, 2), 30))
    harness.run()
    harness.check_against_oracle("request-0")
    harness.check_against_oracle("request-1")
    assert len(harness.toy.plans) < 40, "the choice runs ahead; the beams take every other iteration"
