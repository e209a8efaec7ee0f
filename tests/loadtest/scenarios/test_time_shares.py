import pytest

from loadtest.scenarios.time_shares import TimeShares, detokenizing_seconds, staging_seconds, time_shares

SPENT = {
    "headrace_iteration_seconds_sum{phase=schedule}": 0.1,
    "headrace_iteration_seconds_sum{phase=launch}": 1.0,
    "headrace_iteration_seconds_sum{phase=wait}": 6.0,
    "headrace_iteration_seconds_sum{phase=apply}": 0.2,
    "headrace_request_seconds_sum": 32.0,
    "headrace_request_seconds_count": 4.0,
}


def parts(shares: TimeShares) -> list[float]:
    return [shares.device_s, shares.staging_s, shares.deciding_s, shares.between_s, shares.outside_s]


def test_the_parts_add_up_to_the_latency() -> None:
    shares = time_shares(10.0, 10.0, SPENT, None)
    assert parts(shares) == pytest.approx([6.0, 1.0, 0.3, 0.7, 2.0])
    assert sum(parts(shares)) == pytest.approx(shares.latency_s)


def test_where_launching_computes_staging_is_taken_off() -> None:
    shares = time_shares(10.0, 10.0, SPENT, 0.4)
    assert parts(shares) == pytest.approx([6.6, 0.4, 0.3, 0.7, 2.0])
    assert sum(parts(shares)) == pytest.approx(shares.latency_s)


def test_who_ends_before_the_last_has_not_lived_through_all_of_the_phases() -> None:
    """The engine was at work for 16 s, 14.6 of them phases; a request was there for 8."""
    spent = {name: 2 * value if "phase" in name else value for name, value in SPENT.items()}
    shares = time_shares(10.0, 16.0 + 2.0, spent, None)
    assert parts(shares) == pytest.approx([6.0, 1.0, 0.3, 0.7, 2.0])
    assert sum(parts(shares)) == pytest.approx(shares.latency_s)


@pytest.mark.parametrize("together_s", [10.0, 10.5, 20.0])
@pytest.mark.parametrize("latency_s", [7.9, 8.0, 10.0])
def test_no_part_is_below_zero_even_where_clocks_differ_by_a_little(latency_s: float, together_s: float) -> None:
    spent = SPENT | {"headrace_iteration_seconds_sum{phase=wait}": 7.5}
    shares = time_shares(latency_s, together_s, spent, None)
    assert min(parts(shares)) >= 0
    assert time_shares(10.0, 10.0, spent, None).between_s == 0, "8.8 s of phases, 8 s in the engine"
    assert sum(parts(shares)) == pytest.approx(latency_s)


def test_host_work_has_a_cost() -> None:
    assert 0 < staging_seconds(4, 40) < 1
    assert 0 < detokenizing_seconds(500) < 0.01
