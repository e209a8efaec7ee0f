from __future__ import annotations

import pytest

from service.core.sequence import Sequence
from service.engine.processed_tokens import ProcessedTokens
from service.scheduler.preemption import AlwaysRecompute
from tests.engine.harness import Harness


def test_tokens_count_as_what_they_were():
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 0, 6, num_drawn=0)
    tokens.add(sequence, 6, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (10, 0, 1)


def test_what_a_preemption_threw_away_is_recomputed_and_no_prompt():
    """Preempted after 8 of 10 prompt tokens: these come again in two chunks, the second with the prompt's rest."""
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    sequence.recompute_until = 8
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 0, 5, num_drawn=0)
    assert (tokens.prompt, tokens.recomputed) == (0, 5)
    tokens.add(sequence, 5, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed) == (2, 8)


def test_a_decode_is_neither():
    sequence = Sequence(0, 0, 0, list(range(11)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 10, 11, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (0, 0, 1)


def gaps_of(harness: Harness) -> list[tuple[float, int]]:
    return [gap for iteration in harness.sink.iterations for gap in iteration.token_gaps]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_gaps_of_a_request_fill_the_time_from_its_first_token_to_its_last(overlap: bool):
    """However it is batched, chunked and preempted: one gap for each token but the first."""
    harness = Harness(num_blocks=14, preemption=AlwaysRecompute(), overlap=overlap)
    requests = [harness.request(tuple(range(10 * i, 10 * i + 3 + 5 * i)), 12, seed=i) for i in range(4)]
    for request in requests:
        assert harness.add(request)
        harness.step()
    harness.run()
    ended = [stats for stats, _, _ in harness.sink.requests]
    assert any(stats.num_preemptions for stats in ended), "the scene is to have gaps of all sizes"
    assert sum(count for _, count in gaps_of(harness)) == sum(stats.num_output_tokens - 1 for stats in ended)
    decoding_s = sum(stats.finished_s - stats.first_token_s for stats in ended if stats.first_token_s is not None)
    assert sum(seconds * count for seconds, count in gaps_of(harness)) == pytest.approx(decoding_s)


def test_sequences_side_by_side_are_one_entry():
    harness = Harness(max_num_batched_tokens=64)
    for _ in range(6):
        harness.add(harness.request((1, 2), 5))
    harness.run()
    assert [iteration.token_gaps for iteration in harness.sink.iterations] == [
        (),
        *[((pytest.approx(0.01), 6),)] * 4,
    ]


def test_choices_of_one_request_come_side_by_side():
    harness = Harness()
    harness.add(harness.request((1, 2), 4, n=3))
    harness.run()
    assert gaps_of(harness) == [(pytest.approx(0.01), 1)] * 3
