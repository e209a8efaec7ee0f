from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import ALL_SEE_A_WINDOW, ALL_SEE_ALL, MOST_GROUPS, LayerGroups, TableGroups

LONGEST = 1000


def every(nth: int, num_layers: int, window: int) -> tuple[int | None, ...]:
    """Each nth layer sees everything."""
    return tuple(None if layer % nth == nth - 1 else window for layer in range(num_layers))


@pytest.mark.parametrize(
    ("windows", "tables", "layers_each"),
    [
        ((None,) * 32, ALL_SEE_ALL, 32),
        ((96,) * 32, ALL_SEE_A_WINDOW, 32),
        ((LONGEST,) * 2 + (None,), ALL_SEE_ALL, 3),
        (every(6, 34, 512), TableGroups(1, 6), 5),
        (every(6, 62, 512), TableGroups(1, 6), 10),
        (every(6, 26, 512), TableGroups(1, 6), 4),
        (every(2, 42, 512), TableGroups(1, 1), 21),
        (every(2, 24, 128), TableGroups(1, 1), 12),
        ((None,) * 28 + (512,) * 4, TableGroups(7, 1), 4),
    ],
    ids=["llama", "mistral", "never left", "gemma 3 4b", "27b", "1b", "gemma 2", "gpt-oss", "the last ones"],
)
def test_groups_are_as_large_as_leaves_nothing_held_without_need(windows, tables, layers_each):
    groups = LayerGroups.of(windows, LONGEST)
    assert (groups.tables, groups.layers_each) == (tables, layers_each)


@given(st.lists(st.sampled_from([None, 20, 50, LONGEST]), min_size=1, max_size=40))
def test_each_layer_has_a_place_of_its_own_among_those_that_see_alike(windows: list[int | None]):
    groups = LayerGroups.of(windows, LONGEST)
    num_full, num_windowed = groups.tables
    assert groups.tables.size <= MOST_GROUPS
    assert len(set(groups.places)) == len(windows) == len(groups.group_of)
    for window, (group, place) in zip(windows, groups.places, strict=True):
        assert 0 <= place < groups.layers_each
        assert (group < num_full) == (window is None or window == LONGEST), "no layer's tokens go too soon"
    assert set(groups.group_of) == set(range(num_full + num_windowed)), "no group is empty"


@pytest.mark.parametrize(
    ("windows", "num_stages", "tables", "layers_each", "group_of"),
    [
        (every(2, 24, 128), 2, (1, 1), 6, [[1, 0] * 6] * 2),
        (every(6, 48, 512), 2, (1, 5), 4, None),
        ((512, None, 512, 512), 2, (1, 2), 1, [[1, 0], [1, 2]]),
        ((None,) * 4 + (512,) * 4, 2, (1, 0), 4, [[0] * 4] * 2),
        ((512,) * 8, 4, (0, 1), 2, [[0, 0]] * 4),
    ],
    ids=["gpt-oss", "gemma 3 12b", "uneven", "nothing to be had", "mistral"],
)
def test_stages_share_tables_whatever_layers_they_have(windows, num_stages, tables, layers_each, group_of):
    of_stages = [LayerGroups.of(windows, LONGEST, num_stages=num_stages, stage=i) for i in range(num_stages)]
    assert {each[:2] for each in of_stages} == {(tables, layers_each)}
    for stage, groups in enumerate(of_stages):
        num_layers = len(windows) // num_stages
        own = windows[stage * num_layers : (stage + 1) * num_layers]
        assert len(set(groups.places)) == num_layers and all(place < layers_each for _, place in groups.places)
        if tables[0] and tables[1]:
            assert [group < tables[0] for group in groups.group_of] == [window is None for window in own]
        assert group_of is None or list(groups.group_of) == group_of[stage]


def test_layers_that_are_not_parted_give_back_only_what_all_have_left_behind():
    assert LayerGroups.of((20, None), LONGEST, is_parted=False) == LayerGroups.one(2)
    assert LayerGroups.of((20, 50), LONGEST, is_parted=False) == LayerGroups.one(2, ALL_SEE_A_WINDOW)
