from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import TableGroups
from service.scheduler.admission import Admission
from service.scheduler.history import ENOUGH_LENGTHS, History
from service.scheduler.memory_forecast import ForecastAdmission, ReserveAdmission, peak_num_tokens
from tests.engine.harness import Harness
from tests.examples import examples


def simulated_peak(sequences: list[tuple[int, int]]) -> int:
    """By definition: each sequence gets one token per iteration, and leaves after its last."""
    peak = 0
    for step in range(1, max((to_come for _, to_come in sequences), default=0) + 1):
        peak = max(peak, sum(now + step for now, to_come in sequences if to_come >= step))
    return peak


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), max_size=12))
def test_the_peak_is_what_a_simulation_finds(sequences: list[tuple[int, int]]):
    assert peak_num_tokens(sequences) == simulated_peak(sequences)


def run_all(admission: str, num_requests: int = 12) -> Harness:
    harness = Harness(num_blocks=20, block_size=2, max_num_seqs=8, max_num_batched_tokens=64, admission=admission)
    for seed in range(num_requests):
        harness.add(harness.request((1, 2, seed), 8, seed=seed))
    harness.run()
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)
    return harness


def num_preemptions(harness: Harness) -> int:
    return sum(stats.num_preemptions for stats, _, _ in harness.sink.requests)


def test_reserving_never_preempts_and_taking_on_demand_does():
    assert num_preemptions(run_all("reserve")) == 0
    assert num_preemptions(run_all("on-demand")) > 0


def test_a_forecast_preempts_less_than_taking_on_demand():
    assert num_preemptions(run_all("forecast")) < num_preemptions(run_all("on-demand"))


def mean_batch(admission: str) -> float:
    """Mean batch size with outputs that end far before max_tokens."""
    harness = Harness(num_blocks=24, block_size=2, max_num_seqs=8, max_num_batched_tokens=64, admission=admission)
    for seed in range(examples(80)):
        harness.add(harness.request((1, 2, seed), 24, seed=seed, stops=frozenset(range(0, 1000, 3))))
    harness.run()
    return sum(i.batch_size for i in harness.sink.iterations) / len(harness.sink.iterations)


def test_a_forecast_fills_the_memory_that_reserving_leaves_empty():
    assert mean_batch("forecast") > 1.5 * mean_batch("reserve")


def test_short_outputs_in_the_past_let_more_requests_in():
    history = History()
    admission = ForecastAdmission(history)
    harness = Harness(num_blocks=20, block_size=2)
    first, second = (harness.request((1, 2), 30, seed=i) for i in range(2))
    for request in (first, second):
        harness.engine.requests.add(request)
    a, b = harness.scheduler.pool.groups()
    assert admission.fit(b, [], harness.blocks, [a]).name == "LATER"
    for _ in range(ENOUGH_LENGTHS):
        history.choice_ended(5)
    assert admission.fit(b, [], harness.blocks, [a]).name == "OK"


@pytest.mark.parametrize(("num_blocks", "answer"), [(10, "OK"), (9, "LATER")])
@pytest.mark.parametrize("make", [ReserveAdmission, lambda: ForecastAdmission(History())], ids=["reserve", "forecast"])
@pytest.mark.parametrize("groups", [None, TableGroups(1, 2)], ids=["one group", "three groups"])
def test_what_fits_to_the_last_block_starts(
    make: Callable[[], Admission], num_blocks: int, answer: str, groups: TableGroups | None
):
    """Two requests of 2 + 8 tokens in blocks of 2; with several groups of layers, in as many blocks of each."""
    harness = Harness(num_blocks, block_size=2)
    if groups is not None:
        harness = Harness(num_blocks * groups.size, block_size=2, window=100, groups=groups)
    for seed in range(2):
        harness.engine.requests.add(harness.request((1, 2), 8, seed=seed))
    running, waiting = harness.scheduler.pool.groups()
    assert make().fit(waiting, [], harness.blocks, [running]).name == answer


@pytest.mark.parametrize("admission", ["reserve", "forecast", "on-demand"])
def test_who_has_left_keeps_its_blocks_until_its_last_iteration_is_over(admission: str):
    harness = Harness(num_blocks=4, admission=admission, overlap=True)
    for first_id in (1, 2):
        harness.add(harness.request((first_id,) * 12, 4))
        harness.step()
        harness.engine.requests.abort("request-0")
        harness.collect()
    harness.run()
    harness.check_against_oracle("request-1")


def test_what_a_request_has_generated_is_not_to_come_again():
    harness = Harness(num_blocks=7, block_size=2)
    for seed in range(2):
        harness.engine.requests.add(harness.request((1, 2), 8, seed=seed))
    running, waiting = harness.scheduler.pool.groups()
    running.leader.token_ids.extend([5] * 6)  # 8 tokens now and 2 to come: 14 at the peak
    assert ForecastAdmission(History()).fit(waiting, [], harness.blocks, [running]).name == "OK"


@pytest.mark.parametrize(
    ("num_blocks", "is_shared", "answer"),
    [(13, True, "OK"), (12, True, "LATER"), (16, False, "OK"), (15, False, "LATER")],
)
@pytest.mark.parametrize("make", [ReserveAdmission, lambda: ForecastAdmission(History())], ids=["reserve", "forecast"])
def test_adapters_are_held_beside_what_is_to_come(
    make: Callable[[], Admission], num_blocks: int, is_shared: bool, answer: str
):
    """Two requests of 2 + 8 tokens in blocks of 2, with an adapter of 3 blocks each, or with the same one."""
    harness = Harness(num_blocks, block_size=2, num_adapter_slots=2, max_num_seqs=1)
    first, second = harness.adapter(3), harness.adapter(3)
    harness.add(harness.request((1, 2), 8, adapter=first))
    harness.step()
    harness.add(harness.request((1, 2), 8, adapter=first if is_shared else second))
    running, waiting = harness.scheduler.pool.groups()
    running.leader.drop_pending()
    assert make().fit(waiting, [], harness.blocks, [running]).name == answer


@pytest.mark.parametrize("overlap", [False, True])
def test_reserving_never_preempts_whatever_adapters_come_and_go(overlap: bool):
    harness = Harness(
        num_blocks=20,
        block_size=2,
        num_adapter_slots=3,
        max_num_batched_tokens=64,
        admission="reserve",
        overlap=overlap,
    )
    adapters = [None, *(harness.adapter(size) for size in (2, 3, 4, 2))]
    for seed in range(examples(20)):
        harness.add(harness.request((1, 2, seed), 8, seed=seed, adapter=adapters[seed * 3 % 5]))
    harness.run()
    assert num_preemptions(harness) == 0
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


@pytest.mark.parametrize(("num_blocks", "answer"), [(11, "OK"), (10, "LATER")])
@pytest.mark.parametrize("make", [ReserveAdmission, lambda: ForecastAdmission(History())], ids=["reserve", "forecast"])
def test_what_choices_share_counts_once(make: Callable[[], Admission], num_blocks: int, answer: str):
    """In blocks of 2: three choices of 4 + 4 tokens (2 shared blocks and 2 for each), and one of 2 + 4 tokens (3)."""
    harness = Harness(num_blocks, block_size=2)
    harness.engine.requests.add(harness.request((1, 2, 3, 4), 4, 3))
    harness.engine.requests.add(harness.request((1, 2), 4))
    running, waiting = harness.scheduler.pool.groups()
    assert make().fit(waiting, [], harness.blocks, [running]).name == answer


def test_under_a_window_nobody_holds_more_than_it():
    assert peak_num_tokens([(10, 50), (30, 5)]) == 60
    assert peak_num_tokens([(10, 50), (30, 5)], most_each=20) == 40
    assert peak_num_tokens([(3, 2), (4, 1)], most_each=20) == peak_num_tokens([(3, 2), (4, 1)])
