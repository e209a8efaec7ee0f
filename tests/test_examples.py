from __future__ import annotations

import itertools

import pytest

from tests.examples import each_once, examples, pairwise, spread


def test_a_number_is_multiplied_and_never_none():
    assert [examples(8, factor) for factor in (0.01, 1, 2.5, 10)] == [1, 8, 20, 80]


@pytest.mark.parametrize("usual", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("many", [1, 2, 3, 10, 31])
def test_a_spread_has_both_ends_and_nothing_twice(usual: int, many: int):
    chosen = spread(range(many), usual, 1)
    assert len(chosen) == len(set(chosen)) == min(usual, many)
    assert chosen[0] == 0
    assert chosen[-1] == many - 1 or usual == 1
    assert spread(range(many), usual, 50) == list(range(many))


@pytest.mark.parametrize("sizes", [(3,), (4, 3), (4, 3, 2), (4, 4, 4, 4), (5, 1, 2)])
def test_any_two_values_meet_in_few_rows_and_all_rows_are_there_when_asked_for(sizes: tuple[int, ...]):
    axes = [[(axis, value) for value in range(size)] for axis, size in enumerate(sizes)]
    rows = pairwise(*axes, factor=1)
    for left, right in itertools.combinations(axes, 2):
        assert set(itertools.product(left, right)) <= {pair for row in rows for pair in itertools.combinations(row, 2)}
    assert {value for row in rows for value in row} == set(itertools.chain(*axes))
    largest = sorted(sizes)[-2:]
    assert len(rows) <= 1.5 * largest[0] * largest[-1]
    assert pairwise(*axes, factor=10) == list(itertools.product(*axes))
    once = each_once(*axes, factor=1)
    assert {value for row in once for value in row} == set(itertools.chain(*axes))
    assert len(once) == max(sizes)
    assert each_once(*axes, factor=10) == pairwise(*axes, factor=10)
