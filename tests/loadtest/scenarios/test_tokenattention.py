import dataclasses

from loadtest.scenarios.stage import SMALL, Stage
from loadtest.scenarios.tokenattention import BLOCK_SIZES, under_full_load


def test_whose_length_is_known_is_hardly_preempted_and_single_tokens_leave_nothing_unfilled() -> None:
    stage = Stage(dataclasses.replace(SMALL, request_divisor=10))
    table = under_full_load(stage, "alpaca")
    rows = {(admission, size): cells for admission, size, *cells in table.rows}
    for size in BLOCK_SIZES:
        share, held, _, _, num_preemptions = rows["forecast, lengths known", size]
        assert held > 80, "memory is scarce"
        assert num_preemptions < 10 if size > 1 else num_preemptions == 0
        assert share > 99.9 if size == 1 else share < 95
        assert rows["on demand", size][-1] > 100
