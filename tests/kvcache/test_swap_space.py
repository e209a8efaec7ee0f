from __future__ import annotations

from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from tests.kvcache.block_invariants import check_blocks


def make_blocks(num_host_blocks: int = 8) -> BlockManager:
    blocks = BlockManager(8, 4, NoPrefixCache(), num_host_blocks)
    blocks.allocate(0, 10, [])
    blocks.fork(0, 1, 8)
    return blocks


def test_blocks_are_given_back_only_when_the_copy_has_finished():
    blocks = make_blocks()
    transfer = blocks.swap_out([0, 1])
    assert transfer.to_host
    assert len(transfer.device_blocks) == len(transfer.host_blocks) == 3, "a shared block moves once"
    assert blocks.pool.num_used == 3
    assert blocks.swap_space.is_swapping(0)
    blocks.swap_space.finish(transfer.transfer_id)
    assert blocks.pool.num_used == 0
    assert blocks.swap_space.num_used == 3
    assert not blocks.swap_space.has_transfers
    check_blocks(blocks)


def test_the_beginning_that_others_may_look_for_is_taken_last():
    blocks = make_blocks()
    blocks.free(1)
    table = list(blocks.table(0).block_ids)
    blocks.swap_space.finish(blocks.swap_out([0]).transfer_id)
    assert blocks.pool.allocate_many(8)[-3:] == table[::-1]


def test_sharing_survives_the_way_there_and_back():
    blocks = make_blocks()
    blocks.swap_space.finish(blocks.swap_out([0, 1]).transfer_id)
    transfer = blocks.swap_in([0, 1])
    assert blocks.swap_space.num_used == 3, "the host's copy is still being read"
    blocks.swap_space.finish(transfer.transfer_id)
    assert blocks.swap_space.num_used == 0
    assert blocks.pool.num_used == 3
    assert blocks.table(1).block_ids == blocks.table(0).block_ids[:2]
    assert blocks.table(0).take_changes()[0] == 0, "the executor has to be told the whole table"
    check_blocks(blocks)


def test_ending_on_the_way_out_keeps_both_sides_until_the_copy_has_finished():
    blocks = make_blocks()
    transfer = blocks.swap_out([0, 1])
    blocks.free(0)
    blocks.free(1)
    assert (blocks.pool.num_used, blocks.swap_space.num_used) == (3, 3)
    check_blocks(blocks)
    blocks.swap_space.finish(transfer.transfer_id)
    assert (blocks.pool.num_used, blocks.swap_space.num_used) == (0, 0)


def test_ending_on_the_way_in_keeps_both_sides_until_the_copy_has_finished():
    blocks = make_blocks()
    blocks.swap_space.finish(blocks.swap_out([0, 1]).transfer_id)
    transfer = blocks.swap_in([0, 1])
    blocks.free(0)
    blocks.free(1)
    assert (blocks.pool.num_used, blocks.swap_space.num_used) == (3, 3)
    check_blocks(blocks)
    blocks.swap_space.finish(transfer.transfer_id)
    assert (blocks.pool.num_used, blocks.swap_space.num_used) == (0, 0)


def test_ending_while_swapped_frees_the_host():
    blocks = make_blocks()
    blocks.swap_space.finish(blocks.swap_out([0, 1]).transfer_id)
    blocks.free(1)
    assert blocks.swap_space.num_used == 3
    blocks.free(0)
    assert blocks.swap_space.num_used == 0


def test_the_host_never_has_more_blocks_than_the_device():
    assert make_blocks(100).swap_space.num_free == 8
    assert make_blocks(0).swap_space.num_free == 0
