from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.adapter import Adapter
from service.kvcache.block_manager import BlockManager, Fit
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from tests.kvcache.block_invariants import check_blocks
from tests.kvcache.test_prefix_cache import make_sequence

NUM_BLOCKS = 12


def make(num_slots: int, num_blocks: int = NUM_BLOCKS) -> BlockManager:
    return BlockManager(num_blocks, 2, NoPrefixCache(), num_adapter_slots=num_slots)


def adapter(adapter_id: int, num_blocks: int = 2) -> Adapter:
    return Adapter(f"adapter-{adapter_id}", adapter_id, num_blocks, "ab")


def start(blocks: BlockManager, wanted: Adapter) -> bool:
    """As a group with this adapter does; returns whether it had to be loaded."""
    blocks.adapter_slots.pin(wanted)
    return blocks.load_adapter(wanted) is not None


def use(blocks: BlockManager, wanted: Adapter) -> bool:
    """Start, and end."""
    is_loaded = start(blocks, wanted)
    blocks.adapter_slots.unpin(wanted)
    check_blocks(blocks)
    return is_loaded


def residents(blocks: BlockManager, adapters: list[Adapter]) -> list[int]:
    return [each.adapter_id for each in adapters if blocks.adapter_slots.is_resident(each)]


def test_a_load_names_a_slot_and_blocks_of_its_own():
    blocks = make(2)
    first, second = adapter(1, 2), adapter(2, 3)
    for each in (first, second):
        blocks.adapter_slots.pin(each)
    loads = [blocks.load_adapter(each) for each in (first, second)]
    assert [(load.slot, load.adapter_id) for load in loads if load] == [(1, 1), (2, 2)]
    held = [block_id for load in loads if load for block_id in load.block_ids]
    assert len(held) == len(set(held)) == 5 == blocks.pool.num_used == blocks.adapter_slots.num_blocks
    assert [blocks.adapter_slots.slot_of(each) for each in (None, first, second)] == [0, 1, 2]
    assert not start(blocks, first), "the second group finds it there"
    check_blocks(blocks)


def test_the_one_that_has_been_idle_for_longest_gives_way_its_slot():
    blocks, every = make(3), [adapter(number) for number in range(1, 6)]
    for number in (1, 2, 3, 1):
        use(blocks, every[number - 1])
    assert use(blocks, every[3])
    assert residents(blocks, every) == [1, 3, 4]
    assert use(blocks, every[4])
    assert residents(blocks, every) == [1, 4, 5]
    assert blocks.adapter_slots.take_num_evicted() == 2
    assert blocks.adapter_slots.take_num_evicted() == 0


def test_idle_adapters_go_before_blocks_are_short_and_no_more_of_them_than_needed():
    blocks, every = make(4), [adapter(number, 3) for number in range(1, 4)]
    for each in every:
        use(blocks, each)
    assert blocks.pool.num_free == 3
    assert blocks.fit(6) is Fit.OK
    blocks.allocate(0, 12, [])
    assert residents(blocks, every) == [2, 3]
    blocks.supply.append_each([blocks.table(0)])
    assert residents(blocks, every) == [3]
    assert blocks.fit(5) is Fit.OK
    assert blocks.fit(6) is Fit.LATER
    check_blocks(blocks)


def test_who_is_pinned_stays():
    blocks, pinned, idle = make(2), adapter(1, 4), adapter(2, 4)
    start(blocks, pinned)
    use(blocks, idle)
    assert blocks.supply.num_available == NUM_BLOCKS - 4
    blocks.allocate(0, 2 * (NUM_BLOCKS - 4), [])
    assert residents(blocks, [pinned, idle]) == [1]
    assert blocks.fit(1) is Fit.LATER
    assert blocks.adapter_slots.num_pinned_blocks == 4
    start(blocks, pinned)
    blocks.adapter_slots.unpin(pinned)
    assert blocks.fit(1) is Fit.LATER, "one of its groups runs yet"
    blocks.adapter_slots.unpin(pinned)
    assert blocks.fit(1) is Fit.OK


def test_there_is_a_slot_for_whom_not_all_are_pinned_against():
    blocks, first, second = make(1), adapter(1), adapter(2)
    assert blocks.adapter_slots.has_slot_for(first)
    start(blocks, first)
    assert blocks.adapter_slots.has_slot_for(first)
    assert not blocks.adapter_slots.has_slot_for(second)
    blocks.adapter_slots.unpin(first)
    assert blocks.adapter_slots.has_slot_for(second)
    assert not make(0).adapter_slots.has_slot_for(first)


@pytest.mark.parametrize("is_running", [False, True])
def test_who_is_forgotten_goes_once_nobody_runs_with_it(is_running: bool):
    blocks, unwanted = make(2), adapter(1)
    start(blocks, unwanted)
    if not is_running:
        blocks.adapter_slots.unpin(unwanted)
    blocks.adapter_slots.forget(unwanted)
    check_blocks(blocks)
    assert residents(blocks, [unwanted]) == ([1] if is_running else [])
    if is_running:
        blocks.adapter_slots.unpin(unwanted)
    assert blocks.pool.num_used == 0
    assert blocks.adapter_slots.take_num_evicted() == 0, "nobody else needed its place"
    assert use(blocks, unwanted), "who came before gets it all the same"
    assert residents(blocks, [unwanted]) == [], "and it goes again"


def test_who_is_forgotten_by_all_is_not_remembered_here():
    blocks = make(2)
    unwanted = [adapter(1)]
    blocks.adapter_slots.forget(unwanted[0])
    assert len(blocks.adapter_slots._forgotten) == 1
    unwanted.clear()
    assert not blocks.adapter_slots._forgotten


def test_what_its_blocks_held_before_is_found_no_more_and_what_is_free_of_meaning_is_taken_first():
    cache = ChainedPrefixCache(2)
    blocks = BlockManager(4, 2, cache, num_adapter_slots=1)
    sequence = make_sequence((1, 2, 3, 4, 5, 6, 7))
    blocks.allocate(0, 7, [])
    blocks.cache_prefix(sequence, "", 6)
    blocks.free(0)
    use(blocks, adapter(1, 2))
    assert len(blocks.match_prefix(sequence, "")) == 2, "the last block of the prefix, and the one behind it, went"
    use(blocks, adapter(2, 2))
    assert len(blocks.match_prefix(sequence, "")) == 2, "the first adapter's blocks, which nobody looks for, went"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(1, 6)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("free"), st.integers(0, 30)),
        st.tuples(st.just("forget"), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(operations=operations, num_slots=st.integers(1, 4))
def test_pinned_ones_stay_idle_ones_go_in_the_order_in_which_they_became_so(
    operations: list[tuple[str, int]], num_slots: int
):
    """Against a list: idle adapters, the one that goes next first."""
    blocks, every = make(num_slots), {number: adapter(number, 1 + number % 3) for number in range(1, 7)}
    slots = blocks.adapter_slots
    running: list[int] = []
    taken: list[int] = []
    idle: list[int] = []
    forgotten: set[int] = set()
    for number, (name, argument) in enumerate(operations):
        before = set(residents(blocks, [*every.values()]))
        wanted: set[int] = set()
        match name:
            case "start":
                each = every[argument]
                if slots.has_slot_for(each) and blocks.fit(slots.num_blocks_to_pin(each)) is Fit.OK:
                    start(blocks, each)
                    running.append(argument)
                    wanted = {argument}
                    idle = [other for other in idle if other != argument]
            case "end" if running:
                ended = running.pop(argument % len(running))
                slots.unpin(every[ended])
                if ended not in running:
                    before -= {ended} & forgotten
                    idle += [] if ended in forgotten else [ended]
            case "take" if blocks.fit(argument) is Fit.OK:
                blocks.allocate(number, 2 * argument, [])
                taken.append(number)
            case "free" if taken:
                blocks.free(taken.pop(argument % len(taken)))
            case "forget":
                slots.forget(every[argument])
                forgotten.add(argument)
                before -= {argument} - set(running)
                idle = [other for other in idle if other != argument]
        check_blocks(blocks)
        now = set(residents(blocks, [*every.values()]))
        gone = [other for other in idle if other not in now]
        assert gone == idle[: len(gone)], "the first of the idle"
        assert before - set(gone) | wanted == now, "nobody else goes or comes"
        idle = idle[len(gone) :]
        assert set(running) <= now
        assert blocks.supply.num_available == NUM_BLOCKS - slots.num_pinned_blocks - sum(
            len(blocks.table(other).block_ids) for other in taken
        )
