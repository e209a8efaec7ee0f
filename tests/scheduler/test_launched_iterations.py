from __future__ import annotations

from service.core.sequence import Sequence
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.launched_iterations import IterationGroups, LaunchedIterations
from service.scheduler.lockstep_decode import LockstepDecode
from service.scheduler.lockstep_members import LockstepIteration, LockstepMembers
from tests.scheduler.test_request_pool import make_group


def make_launched() -> tuple[LaunchedIterations, BlockManager, Sequence]:
    blocks = BlockManager(4, 2, NoPrefixCache())
    blocks.allocate(0, 4, [])
    return LaunchedIterations(blocks), blocks, make_group("a").leader


def test_what_a_running_iteration_touches_is_kept_until_it_has_finished():
    launched, blocks, sequence = make_launched()
    whose = IterationGroups(None, [make_group("a")])
    sequence.last_iteration = launched.next_number
    launched.begin(whose)
    launched.begin(IterationGroups(None, []))
    launched.free(sequence)
    assert blocks.pool.num_used == 2
    assert launched.finish() == whose
    assert blocks.pool.num_used == 0, "the second iteration knows nothing of it"
    assert len(launched) == 1


def test_with_nothing_running_blocks_are_free_at_once():
    launched, blocks, sequence = make_launched()
    launched.free(sequence)
    assert blocks.pool.num_used == 0


def test_the_executor_is_told_once():
    launched, _, sequence = make_launched()
    launched.free(sequence)
    launched.release([5, 6])
    assert launched.take_released() == (0, 5, 6)
    assert launched.take_released() == ()


def test_who_holds_nothing_is_not_told_of():
    launched, blocks, sequence = make_launched()
    blocks.free(0)
    launched.free(sequence)
    assert launched.take_released() == ()


def test_the_groups_of_an_iteration_are_in_the_order_of_its_plan():
    blocks = BlockManager(4, 2, NoPrefixCache())
    blocks.allocate(0, 4, [])
    together, apart = make_group("a"), make_group("b")
    members = LockstepMembers()
    members.add(LockstepDecode(together, together.leader, blocks.table(0), 1, 0))
    assert IterationGroups(LockstepIteration(0, members, []), [apart]).groups() == [together, apart]
    assert IterationGroups(None, [apart]).groups() == [apart]
