import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.baselines.engine_system import constant_limit, exact_limit, paged
from loadtest.baselines.static_batching import StaticBatching
from loadtest.offline.replay import replay
from tests.loadtest.baselines.pools import pool, request

REQUESTS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.floats(0, 0.2)), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_nobody_joins_a_batch_that_runs_and_all_leave_together(drawn, size) -> None:
    requests = [request(i, prompt, output, at) for i, (prompt, output, at) in enumerate(drawn)]
    outcome = replay(StaticBatching(pool(), exact_limit, size), requests)
    batches: dict[float, list] = {}
    for completion in outcome.completions:
        batches.setdefault(completion.finished_s, []).append(completion)
    last_end = 0.0
    for end in sorted(batches):
        members = batches[end]
        assert len(members) <= size
        assert all(c.first_scheduled_s >= last_end for c in members), "the batch before has ended"
        last_end = end
    by_arrival = sorted(outcome.completions, key=lambda c: (c.arrival_s, c.request_id))
    ends = [c.finished_s for c in by_arrival]
    assert ends == sorted(ends), "first come, first served"
    assert [c.num_output_tokens for c in outcome.completions] == [r.output_len for r in requests]


def test_the_batch_is_padded_both_ways() -> None:
    system = StaticBatching(pool(), exact_limit, 2)
    outcome = replay(system, [request(0, 4, 2), request(1, 12, 6)])
    alone = replay(paged(pool()), [request(1, 12, 6)])
    assert len(outcome.iterations) == len(alone.iterations), "as many iterations as the longest answer takes"
    assert {i.batch_size for i in outcome.iterations} == {2}


def test_memory_limits_the_batch_by_the_limit_that_it_knows() -> None:
    outcome = replay(StaticBatching(pool(), constant_limit(28), 8), [request(i, 4, 2) for i in range(4)])
    assert max(i.batch_size for i in outcome.iterations) == 2, "64 tokens are two rows of 4 + 28"


def test_a_request_that_fits_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="request 0 never fits"):
        StaticBatching(pool(), constant_limit(61), 8).submit(request(0, 4, 2))
