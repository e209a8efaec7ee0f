import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.baselines.engine_system import exact_limit, reserve
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import iteration_s
from loadtest.baselines.modelled_pipeline import ModelledPipeline
from loadtest.offline.replay import replay
from service.core.iteration import IterationPlan
from tests.examples import examples
from tests.loadtest.baselines.pools import request
from tests.loadtest.baselines.test_modelled_device import plan


def pipeline_pool(num_stages: int, num_lanes: int) -> KvPool:
    device = ModelledPipeline(num_stages)
    return KvPool(device, device.clock(), 400, 4, 64, 64, 64, vocab_size=1000, num_lanes=num_lanes)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_a_stage_computes_one_iteration_at_a_time_and_all_of_them_in_order(num_stages, lengths) -> None:
    device = ModelledPipeline(num_stages)
    clock, plans = device.clock(), [plan(length) for length in lengths]
    pending = [device.launch(each) for each in plans]
    ends = []
    with clock.working():
        for each in pending:
            each.wait()
            assert each.is_done()
            ends.append(clock.now_s())
    assert ends == sorted(ends)
    busiest_s = sum(map(iteration_s, plans)) / num_stages
    assert ends[-1] >= max(busiest_s, *map(iteration_s, plans)), "no faster than a stage, or than one iteration"
    hops_s = 1e-3 * (num_stages - 1) * len(plans)
    assert ends[-1] <= sum(map(iteration_s, plans)) + hops_s, "nor slower than one after another"
    one_by_one = ModelledPipeline(num_stages)
    clock = one_by_one.clock()
    with clock.working():
        for each in plans:
            one_by_one.launch(each).wait()
        assert clock.now_s() >= ends[-1] - 1e-9


def test_nothing_to_compute_takes_no_time() -> None:
    device = ModelledPipeline(2)
    device.launch(plan(1))
    idle = device.launch(IterationPlan((), released=(1,)))
    assert idle.is_done()


@pytest.mark.parametrize("num_stages", [2, 3])
def test_as_many_batches_as_stages_keep_all_of_them_busy(num_stages: int) -> None:
    """ORCA, figure 8a: AB CD EF AB: nearly as many times as fast as with one batch, all of at most the same size."""
    requests = [request(i, 4, 30) for i in range(12 * num_stages)]
    seconds = {}
    for num_lanes in (1, num_stages):
        outcome = replay(reserve(pipeline_pool(num_stages, num_lanes), exact_limit, 4), requests)
        seconds[num_lanes] = max(completion.finished_s for completion in outcome.completions)
    assert 0.85 * num_stages < seconds[1] / seconds[num_stages] <= num_stages
