"""Work that is cut in parts."""

from __future__ import annotations

import random

import pytest
import torch

from service.runner.halving import in_halves
from tests.examples import examples


def limited(largest, calls):
    def compute(first, stop):
        calls.append((first, stop))
        if stop - first > largest:
            raise torch.OutOfMemoryError("injected")
        return first, stop

    return compute


@pytest.mark.parametrize("seed", range(examples(20)))
def test_the_parts_are_the_whole_in_order(seed):
    chance = random.Random(seed)
    num, largest = chance.randint(1, 100), chance.randint(1, 100)
    parts = in_halves(num, "things", limited(largest, []))
    assert [place for first, stop in parts for place in range(first, stop)] == [*range(num)]
    assert all(largest / 2 <= stop - first <= largest for first, stop in parts) or num <= largest


def test_pieces_of_a_size_that_is_asked_for():
    calls = []
    assert in_halves(7, "things", limited(2, calls), at_once=3) == [(0, 1), (1, 3), (3, 4), (4, 6), (6, 7)]
    assert calls == [(0, 3), (0, 1), (1, 3), (3, 6), (3, 4), (4, 6), (6, 7)]


def test_what_fits_is_computed_once():
    assert in_halves(5, "things", limited(5, calls := [])) == [(0, 5)] == calls


def test_one_that_does_not_fit_is_a_fault():
    with pytest.raises(torch.OutOfMemoryError):
        in_halves(3, "things", limited(0, []))


def test_what_others_compute_too_is_not_cut():
    with pytest.raises(torch.OutOfMemoryError):
        in_halves(4, "things", limited(3, calls := []), may_cut=False)
    assert calls == [(0, 4)]
