from __future__ import annotations

import pytest
import torch

from kernels.paged_tensors import check_paged_tensors

QUERY = torch.zeros(3, 8, 64)
STORAGE = torch.zeros(5, 2, 2, 16, 4, 64)  # blocks, layers, keys and values, tokens, kv heads, head dim
KEYS, VALUES = STORAGE[:, 1, 0], STORAGE[:, 1, 1]


def check(query=QUERY, keys=KEYS, values=VALUES, block_size=16, out=QUERY):
    check_paged_tensors(query, keys, values, block_size, out)


def test_one_layer_of_the_storage_and_queries_of_a_packed_projection_pass():
    check()
    check(query=torch.zeros(3, 16, 64)[:, :8])


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": torch.zeros(3, 64, 8).mT},
        {"query": torch.zeros(3, 6, 64), "out": torch.zeros(3, 6, 64)},
        {"query": torch.zeros(3, 8, 320), "out": torch.zeros(3, 8, 320)},
        {"out": torch.zeros(3, 8, 64, dtype=torch.bfloat16)},
        {"out": torch.zeros(3, 16, 64)[:, :8]},
        {"out": torch.zeros(2, 8, 64)},
        {"block_size": 8},
        {"values": VALUES.contiguous()},
        {"values": VALUES[:4]},
        {"keys": torch.zeros(5, 16, 64, 4).mT, "values": torch.zeros(5, 16, 64, 4).mT},
        {"keys": torch.zeros(5 * 65600).as_strided((5, 16, 4, 64), (65570, 256, 64, 1)),
         "values": torch.zeros(5 * 65600).as_strided((5, 16, 4, 64), (65570, 256, 64, 1))},
    ],
)  # fmt: skip
def test_what_the_kernels_could_not_read_is_refused(wrong):
    with pytest.raises(AssertionError):
        check(**wrong)


def test_caches_of_more_rows_than_32_bits_number_are_refused():
    storage = torch.empty(2**31, 1, 1, 1, device="meta")
    query = torch.empty(1, 1, 1, device="meta")
    with pytest.raises(AssertionError):
        check_paged_tensors(query, storage, storage, 1, query)
    check_paged_tensors(query, storage[1:], storage[1:], 1, query)
