from __future__ import annotations

from tests.engine.harness import Harness


def test_higher_goes_first_and_equal_ones_as_they_came():
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=8, policy="priority")
    for priority in (0, 5, -1, 5):
        harness.add(harness.request((1, 2), 2, priority=priority))
    harness.run()
    assert list(harness.finals) == ["request-1", "request-3", "request-0", "request-2"]


def test_the_least_important_pauses_first():
    harness = Harness(num_blocks=6, block_size=2, max_num_batched_tokens=32, policy="priority")
    for priority in (1, 0, 2):
        harness.add(harness.request((1, 2), 8, seed=priority, priority=priority))
    harness.run()
    preemptions = {stats.arrival_s: stats.num_preemptions for stats, _, _ in harness.sink.requests}
    assert next(iter(harness.finals)) == "request-2"
    assert sum(preemptions.values()) > 0
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)
