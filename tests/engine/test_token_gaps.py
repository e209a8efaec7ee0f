from __future__ import annotations

import pytest

from service.scheduler.preemption import AlwaysRecompute
from tests.engine.harness import Harness


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
