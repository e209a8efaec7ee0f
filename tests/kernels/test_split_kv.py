from __future__ import annotations

import pytest
import torch

from kernels.split_kv import SplitRule, split_items_reference, split_items_triton
from tests.kernels.lanes import GPU, INTERPRET

LENGTHS = {
    "one short": [5],
    "one long": [4000],
    "skewed": [4000, 17, 0, 64, 65, 1],
    "many": [(337 * i) % 900 for i in range(20)],
    "padding": [0, 0, 70, *[0] * 30, 900, 0, 0],
    "nothing but padding": [0, 0, 0],
}


def rows_of(lens: list[int]) -> list[int]:
    return [(7 * seq + 3) % 31 for seq in range(len(lens))]


@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [None, 100])
def test_splits_cover_what_is_seen_once_and_are_about_as_many_as_wanted(lens: list[int], window: int | None):
    rule = SplitRule(64, splits_wanted=20, min_tiles=2, sliding_window=window)
    items = split_items_reference(lens, rows_of(lens), rule)
    assert len(items) <= rule.most_items(len(lens), max(lens))
    assert len(items) <= len(lens) + 20
    split_tiles = max((end - begin for _, begin, end, *_ in items), default=0)
    for seq, length in enumerate(lens):
        mine = [(number, item) for number, item in enumerate(items) if item[3] == seq]
        if length == 0:
            assert not mine, "padding costs nothing"
            continue
        start = 0 if window is None else max(length - window, 0)
        borders = [start, *(item[2] for _, item in mine)]
        assert [item[1] for _, item in mine] == borders[:-1], "one after the other"
        assert borders[-1] == length
        assert all((end - start) % 64 == 0 for end in borders[:-1]), "whole tiles"
        assert {item[0] for _, item in mine} == {rows_of(lens)[seq]}
        assert {item[4:] for _, item in mine} == {(mine[0][0], len(mine))}
        assert len(mine) == 1 or min(end - begin for _, (_, begin, end, *_) in mine) > split_tiles // 2 - 64


@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [None, 100])
def test_sequences_with_the_longest_splits_come_first(lens: list[int], window: int | None):
    """So the device, which takes items in their order, ends with short ones."""
    items = split_items_reference(lens, rows_of(lens), SplitRule(64, 20, min_tiles=2, sliding_window=window))
    longest: dict[int, int] = {}
    for _, begin, end, seq, *_ in items:
        longest[seq] = max(longest.get(seq, 0), -(-(end - begin) // 64))
    assert list(longest.values()) == sorted(longest.values(), reverse=True)


def test_the_most_items_grow_neither_with_the_length_alone_nor_with_the_splits_wanted_alone():
    """As many programs are launched: a batch of long sequences costs one splits_wanted, not one for each of them."""
    rule = SplitRule(64, splits_wanted=20, min_tiles=2)
    assert rule.most_items(3, 1_000_000) == 3 + 20
    assert rule.most_items(3, 3 * 128) == 3 * 3
    assert rule.most_items(3, 0) == 3
    assert rule._replace(sliding_window=256).most_items(3, 1_000_000) == 3 * 2


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("most_at_one_look", [16, 64])
@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [None, 100])
def test_the_kernel_lists_the_same(lens: list[int], window: int | None, most_at_one_look: int, lane):
    rule = SplitRule(64, splits_wanted=20, min_tiles=2, sliding_window=window)
    want = split_items_reference(lens, rows_of(lens), rule)
    context_lens, rows = (
        lane.put(torch.tensor(values, dtype=dtype))
        for values, dtype in ((lens, torch.int32), (rows_of(lens), torch.int64))
    )
    got = split_items_triton(context_lens, rows, rule, len(want) + 3, most_at_one_look)
    assert [tuple(item) for item in got[: len(want), :6].tolist()] == want
    assert got[len(want) :, 0].tolist() == [-1] * 3, "programs without an item"


@pytest.mark.parametrize("lane", [GPU])
def test_many_sequences(lane):
    rule = SplitRule(64, splits_wanted=66, min_tiles=1)
    lens = [(337 * i) % 900 for i in range(1500)]
    want = split_items_reference(lens, list(range(1500)), rule)
    context_lens, rows = lane.put(torch.tensor(lens, dtype=torch.int32)), lane.put(torch.arange(1500))
    got = split_items_triton(context_lens, rows, rule, rule.most_items(1500, 900))
    assert [tuple(item) for item in got[: len(want), :6].tolist()] == want
