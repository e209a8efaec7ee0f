from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.lora_tensors import check_lora_tensors, rows_of_pool, tokens_by_slot
from tests.kernels.lora_case import LoraCase, token_slots


def small_tables():
    case = LoraCase(8, (4, 4), 3)
    case.add(1, 2, 3)
    return case.tables(2)


def test_each_slot_but_0_has_its_tokens():
    groups = tokens_by_slot(token_slots([5, 0, 2, 5, 0, 5]))
    assert [(slot, tokens.tolist()) for slot, tokens in groups] == [(2, [2]), (5, [0, 3, 5])]
    assert tokens_by_slot(token_slots([0, 0])) == tokens_by_slot(token_slots([])) == []


def test_rows_one_behind_another_are_not_copied():
    pool = torch.arange(20.0)
    view = rows_of_pool(pool, [4, 7, 10], 3)
    assert view.tolist() == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert view.data_ptr() == pool[4:].data_ptr()
    assert rows_of_pool(pool, [7, 4, 12], 3).tolist() == [[7, 8, 9], [4, 5, 6], [12, 13, 14]]


def test_takes_slices_of_larger_tables():
    check_lora_tensors(torch.zeros(3, 10)[:, :8], token_slots([1, 0, 1]), small_tables())


@pytest.mark.parametrize(
    "change",
    [
        {"pool": torch.zeros(99, dtype=torch.float16)},
        {"pool": torch.zeros(198)[::2]},
        {"a_offsets": torch.zeros(2, 2, 3, dtype=torch.int32)},
        {"b_offsets": torch.zeros(2, 2, 4, dtype=torch.int64)},
        {"a_offsets": torch.zeros(2, 2, 6, dtype=torch.int64)[..., ::2]},
        {"ranks": torch.zeros(2, 2, dtype=torch.int64)},
        {"ranks": torch.zeros(3, 2, dtype=torch.int32)},
        {"scales": torch.zeros(2, 2, dtype=torch.float64)},
        {"out_features": (4, 4, 4)},
    ],
    ids=str,
)
def test_refuses_tables_that_are_not_as_described(change):
    with pytest.raises(AssertionError):
        check_lora_tensors(torch.zeros(3, 8), token_slots([1, 0, 1]), replace(small_tables(), **change))


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (torch.zeros(2, 8), token_slots([1, 0, 1])),
        (torch.zeros(3, 16)[:, ::2], token_slots([1, 0, 1])),
        (torch.zeros(3, 8), replace(token_slots([1, 0, 1]), slots=torch.zeros(3, dtype=torch.int64))),
        (torch.zeros(3, 8), replace(token_slots([1, 0, 1]), slots=torch.zeros(6, dtype=torch.int32)[::2])),
    ],
    ids=["another number of tokens", "strided", "slots of int64", "slots strided"],
)
def test_refuses_tokens_that_are_not_as_described(rows, given):
    with pytest.raises(AssertionError):
        check_lora_tensors(rows, given, small_tables())
