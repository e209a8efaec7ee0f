import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.baselines.engine_system import constant_limit, exact_limit, paged
from loadtest.baselines.static_batching import StaticBatching
from loadtest.offline.replay import replay
from tests.examples import examples
from tests.loadtest.baselines.pools import pool, request
from tests.loadtest.baselines.test_modelled_pipeline import pipeline_pool

REQUESTS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.floats(0, 0.2)), min_size=1, max_size=12)


@settings(max_examples=examples(30), deadline=None)
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


def test_microbatches_fill_the_stages_and_the_next_batch_waits_for_all_of_them() -> None:
    """ORCA, figure 8b: A B A B. A few decodes take as long as one."""
    requests = [request(i, 4, 20) for i in range(8)]
    ends = {}
    for microbatch_size in (4, 2, 1):
        system = StaticBatching(pipeline_pool(2, 1), exact_limit, 4, microbatch_size)
        outcome = replay(system, requests)
        assert {i.batch_size for i in outcome.iterations if i.batch_size} == {microbatch_size}
        ends[microbatch_size] = sorted({c.finished_s for c in outcome.completions})
        assert len(ends[microbatch_size]) == 2, "two batches"
        first_end = ends[microbatch_size][0]
        assert all(c.first_scheduled_s >= first_end for c in outcome.completions if c.finished_s > first_end)
    assert ends[2][-1] == pytest.approx(ends[4][-1], rel=0.1), "two stages, busy or not: a token takes both of them"
    assert ends[1][-1] > 1.5 * ends[2][-1], "of four microbatches two wait, and each reads all the weights"
    assert system.name == "ft(4, 1)"


def test_a_batch_that_is_not_full_has_fewer_microbatches() -> None:
    outcome = replay(StaticBatching(pipeline_pool(2, 1), exact_limit, 8, 4), [request(i, 4, 6) for i in range(3)])
    assert {i.batch_size for i in outcome.iterations if i.batch_size} == {3}


def test_memory_limits_the_batch_by_the_limit_that_it_knows() -> None:
    outcome = replay(StaticBatching(pool(), constant_limit(28), 8), [request(i, 4, 2) for i in range(4)])
    assert max(i.batch_size for i in outcome.iterations) == 2, "64 tokens are two rows of 4 + 28"


def test_a_request_that_fits_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="request 0 never fits"):
        StaticBatching(pool(), constant_limit(61), 8).submit(request(0, 4, 2))
