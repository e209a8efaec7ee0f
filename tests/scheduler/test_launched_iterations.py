from __future__ import annotations

from service.core.sequence import Sequence
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.decode_members import DecodeMembers
from service.scheduler.launched_iterations import LaunchedGroups, LaunchedIterations
from tests.scheduler.test_request_pool import make_group


def make_launched() -> tuple[LaunchedIterations, BlockManager, Sequence]:
    blocks = BlockManager(4, 2, NoPrefixCache())
    blocks.allocate(0, 4, [])
    return LaunchedIterations(blocks), blocks, make_group("a").leader


def test_what_a_running_iteration_touches_is_kept_until_it_has_finished():
    launched, blocks, sequence = make_launched()
    groups = LaunchedGroups(None, [make_group("a")])
    sequence.last_iteration = launched.next_number
    launched.begin(groups)
    launched.begin(LaunchedGroups(None, []))
    launched.free(sequence)
    assert blocks.pool.num_used == 2
    assert launched.finish() == groups
    assert blocks.pool.num_used == 0, "the second iteration knows nothing of it"
    assert len(launched) == 1


def test_with_nothing_running_blocks_are_free_at_once():
    launched, blocks, sequence = make_launched()
    launched.free(sequence)
    assert blocks.pool.num_used == 0


def test_the_groups_of_an_iteration_are_in_the_order_of_its_plan():
    together, other = make_group("a"), make_group("b")
    members = DecodeMembers().with_more([together], 0)
    assert LaunchedGroups(members, [other]).all() == [together, other]
    assert LaunchedGroups(None, [other]).all() == [other]
