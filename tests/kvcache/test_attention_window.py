from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import LayerGroups, TableGroups
from service.kvcache.attention_window import AttentionWindow


@given(window=st.integers(1, 50), block_size=st.integers(1, 20), position=st.integers(0, 200))
def test_the_first_block_holds_the_first_token_that_a_query_sees(window: int, block_size: int, position: int):
    first = AttentionWindow(window, 1).first_unit(position, block_size)
    seen = max(0, position - window + 1)
    assert first * block_size <= seen < (first + 1) * block_size


@given(
    window=st.integers(1, 50),
    most_new=st.integers(1, 40),
    block_size=st.integers(1, 20),
    start=st.integers(0, 200),
    share=st.floats(0, 1),
)
def test_what_queries_in_flight_see_and_write_fits_in_the_most_units(window, most_new, block_size, start, share):
    seen = AttentionWindow(window, most_new)
    end = start + max(1, round(most_new * share))
    held = -(-end // block_size) - seen.first_unit(start, block_size)
    assert held <= seen.most_units(block_size)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ((37, 37), 37),
        ((37, 50), 50),
        ((37, None), 37),
        ((None,), None),
        ((37, 100, 200), 37),
        ((100,), None),
        ((), None),
    ],
)
def test_it_is_the_widest_that_shows_less_than_everything(windows, expected):
    """100 tokens are all there can be."""
    groups = LayerGroups.of(windows, 100)
    window = AttentionWindow.of_layers(groups, windows, 100, 8)
    assert (window and window.num_tokens) == expected
    assert window is None or window.groups == groups.tables


@given(
    groups=st.tuples(st.integers(0, 3), st.integers(1, 5)),
    window=st.integers(1, 50),
    most_new=st.integers(1, 40),
    block_size=st.integers(1, 20),
    length=st.integers(1, 10**6),
)
def test_of_layers_with_a_window_no_more_is_held_however_long_a_sequence_is(
    groups, window, most_new, block_size, length
):
    seen = AttentionWindow(window, most_new, TableGroups(*groups))
    num_units = -(-length // block_size)
    of_window = seen.most_held(num_units, block_size) - groups[0] * num_units
    assert of_window <= groups[1] * (-(-window // block_size) + -(-most_new // block_size) + 1)
