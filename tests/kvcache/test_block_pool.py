from __future__ import annotations

import re

import pytest

from service.kvcache.block_pool import BlockPool
from tests.kvcache.block_invariants import check_counts


def test_a_block_is_free_again_when_its_last_holder_releases_it():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    pool.release(block)
    assert (pool.reference_count(block), pool.num_used) == (1, 1)
    pool.release(block)
    assert (pool.reference_count(block), pool.num_used, pool.num_free) == (0, 0, 2)


def test_a_freed_block_is_taken_again_last():
    pool = BlockPool(3)
    first = pool.allocate()
    pool.release(first)
    assert [pool.allocate() for _ in range(3)] == [1, 2, first]


def test_freeing_twice_is_a_fault_of_ours():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(block)


def test_sharing_a_free_block_takes_it_off_the_free_list():
    pool = BlockPool(3)
    pool.share(1)
    assert (pool.reference_count(1), pool.num_free) == (1, 2)
    assert [pool.allocate(), pool.allocate()] == [0, 2]


def test_many_at_once_are_as_many_one_by_one():
    one_by_one, at_once = BlockPool(8), BlockPool(8)
    assert at_once.allocate_many(5) == [one_by_one.allocate() for _ in range(5)]
    at_once.share_many([1, 2])
    at_once.release_many([4, 1, 0])
    for block_id in (1, 2):
        one_by_one.share(block_id)
    for block_id in (4, 1, 0):
        one_by_one.release(block_id)
    assert [at_once.reference_count(i) for i in range(8)] == [one_by_one.reference_count(i) for i in range(8)]
    assert at_once.allocate_many(5) == [one_by_one.allocate() for _ in range(5)] == [5, 6, 7, 4, 0]


def test_a_count_that_differs_is_named():
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    pool.share(second)
    check_counts(pool, {first: 1, second: 2})
    for held, wrong in (
        ({first: 1, second: 1}, [second]),
        ({first: 1}, [second]),
        ({first: 1, second: 2, 3: 1}, [3]),
        ({second: 2, 7: 1}, [first, 7]),
    ):
        with pytest.raises(AssertionError, match=re.escape(f"count of blocks {wrong}")):
            check_counts(pool, held)
    pool._free[first] = None
    with pytest.raises(AssertionError, match="free \\+ used"):
        check_counts(pool, {first: 1, second: 2})
