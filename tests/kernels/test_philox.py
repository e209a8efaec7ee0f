from __future__ import annotations

import random

import pytest
import torch

from kernels.philox import philox_4x32, philox_4x32_triton, split_int64, uniform
from tests.kernels.lanes import LANES

ALL_ONES = 0xFFFFFFFF

# From the authors' known-answer file (Random123, kat_vectors: philox4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def in_python(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & ALL_ONES, (a >> 32) ^ c3 ^ k1, a & ALL_ONES
        k0, k1 = (k0 + 0x9E3779B9) & ALL_ONES, (k1 + 0xBB67AE85) & ALL_ONES
    return c0, c1, c2, c3


def words(values):
    return tuple(torch.tensor([v]) for v in values)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter, key, want, lane):
    counter, key = (tuple(map(lane.put, words(part))) for part in (counter, key))
    assert tuple(int(w) for w in lane(philox_4x32, philox_4x32_triton)(counter, key)) == want


@pytest.mark.parametrize("lane", LANES)
def test_every_element_alone_gives_the_same_words(lane):
    chance = random.Random(0)
    rows = [[chance.getrandbits(32) for _ in range(6)] for _ in range(123)]
    columns = [lane.put(torch.tensor(column)) for column in zip(*rows, strict=True)]
    got = torch.stack(lane(philox_4x32, philox_4x32_triton)(tuple(columns[:4]), tuple(columns[4:])), 1).tolist()
    assert got == [list(in_python(row[:4], row[4:])) for row in rows]


def test_counters_broadcast_over_keys():
    counter = (torch.arange(5)[None], torch.tensor([[7], [8]]), torch.zeros(1, 1).long(), torch.zeros(1, 1).long())
    got = philox_4x32(counter, (torch.tensor([[1], [2]]), torch.tensor([[3], [4]])))
    for row, (position, low, high) in enumerate([(7, 1, 3), (8, 2, 4)]):
        want = [in_python((i, position, 0, 0), (low, high)) for i in range(5)]
        assert [tuple(int(w[row, i]) for w in got) for i in range(5)] == want


def test_uniform_never_reaches_its_ends():
    u = uniform(torch.tensor([0, 1, ALL_ONES // 2, ALL_ONES - 1, ALL_ONES]))
    assert u.dtype == torch.float32
    assert float(u[0]) == 2.0**-33
    assert float(u[-1]) == 1 - 2.0**-24
    assert (u[1:] >= u[:-1]).all()


@pytest.mark.parametrize("value", [0, 1, -1, 2**40 + 3, -(2**63), 2**63 - 1])
def test_splits_int64_as_twos_complement(value):
    low, high = split_int64(torch.tensor([value]))
    assert (int(high) << 32 | int(low)) == value % 2**64
