from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.kvcache.contiguous_run import OUT_OF_THE_QUESTION, cheapest_run


@given(
    costs=st.lists(st.integers(0, 5) | st.just(OUT_OF_THE_QUESTION), max_size=30),
    length=st.integers(1, 12),
)
def test_no_run_that_can_be_had_costs_less_and_no_earlier_one_as_little(costs: list[int], length: int):
    runs = {first: costs[first : first + length] for first in range(len(costs) - length + 1)}
    sums = {first: sum(run) for first, run in runs.items() if OUT_OF_THE_QUESTION not in run}
    assert cheapest_run(costs, length) == (min(sums, key=lambda first: (sums[first], first)) if sums else None)
