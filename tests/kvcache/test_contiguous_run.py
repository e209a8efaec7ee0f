from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.kvcache.contiguous_run import cheapest_run


@given(costs=st.lists(st.none() | st.integers(0, 5), max_size=30), length=st.integers(1, 12))
def test_no_run_that_can_be_had_costs_less_and_no_earlier_one_as_little(costs: list[int | None], length: int):
    runs = {first: costs[first : first + length] for first in range(len(costs) - length + 1)}
    sums = {first: sum(c for c in run if c is not None) for first, run in runs.items() if None not in run}
    assert cheapest_run(costs, length) == (min(sums, key=lambda first: (sums[first], first)) if sums else None)
