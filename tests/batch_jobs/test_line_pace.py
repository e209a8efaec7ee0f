from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.batch_jobs.line_pace import BYTES_PER_S, LinePace

LINES = st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 2)), min_size=1, max_size=50)


@given(LINES)
def test_beside_others_so_many_bytes_begin_in_a_second(lines: list[tuple[int, float]]) -> None:
    """Whenever they come: between two beginnings those from the first on have had their time."""
    pace, now_s, begins = LinePace(), 0.0, []
    for num_bytes, later_s in lines:
        now_s += later_s
        begins.append(pace.begins_s(num_bytes, now_s, is_beside_others=True))
        assert begins[-1] >= now_s
    assert begins[0] == lines[0][1], "the first waits for nothing"
    for first in range(len(lines)):
        num_bytes = 0
        for other in range(first + 1, len(lines)):
            num_bytes += lines[other - 1][0]
            assert begins[other] - begins[first] >= num_bytes / BYTES_PER_S - 1e-9


@given(LINES)
def test_alone_a_line_begins_at_once(lines: list[tuple[int, float]]) -> None:
    pace = LinePace()
    for num_bytes, now_s in lines:
        assert pace.begins_s(num_bytes, now_s, is_beside_others=False) == now_s


def test_a_long_line_that_ran_alone_is_waited_for_as_any() -> None:
    pace = LinePace()
    pace.begins_s(8 * 1024 * 1024, 0.0, is_beside_others=True)
    assert pace.begins_s(1, 1.0, is_beside_others=False) == 1.0
    assert pace.begins_s(1, 1.0, is_beside_others=True) < 1.1
