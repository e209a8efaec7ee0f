from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import TableGroups
from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence import Sequence
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager, Fit
from service.kvcache.block_table import HOLE
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from tests.engine.harness import Harness
from tests.kvcache.block_invariants import check_blocks
from tests.kvcache.test_prefix_cache import make_sequence


def test_fit_tells_now_later_and_never():
    blocks = BlockManager(4, 2, NoPrefixCache())
    blocks.allocate(0, 5, [])
    assert blocks.fit(1) is Fit.OK
    assert blocks.fit(1, keep_free=1) is Fit.LATER
    assert blocks.fit(2) is Fit.LATER
    assert blocks.fit(4) is Fit.LATER
    assert blocks.fit(5) is Fit.NEVER


@given(num_tokens=st.integers(1, 300), block_size=st.integers(1, 256))
def test_waste_is_less_than_one_block(num_tokens: int, block_size: int):
    blocks = BlockManager(300, block_size, NoPrefixCache())
    blocks.allocate(0, num_tokens, [])
    waste = len(blocks.table(0).block_ids) * block_size - num_tokens
    assert 0 <= waste < block_size


def test_fork_shares_and_append_copies_a_shared_block_once():
    blocks = BlockManager(8, 4, NoPrefixCache())
    blocks.allocate(0, 6, [])
    blocks.fork(0, 1, 6)
    assert blocks.table(1).block_ids == blocks.table(0).block_ids
    assert blocks.num_blocks_to_append([(1, 7, 6)]) == 1
    assert blocks.num_blocks_to_append([(0, 7, 6), (1, 7, 6)]) == 1, "the last one to write keeps the block"
    [copy] = blocks.append(1, 7, write_from=6)
    assert copy.source == blocks.table(0).block_ids[1]
    assert copy.destination == blocks.table(1).block_ids[1] != copy.source
    assert blocks.append(0, 7, write_from=6) == [], "the last holder writes in place"
    assert blocks.append(1, 8, write_from=7) == []
    check_blocks(blocks)


def is_shared(blocks: BlockManager, sequence_id: int, position: int) -> bool:
    """Whether the block of `position` is there and another table holds it too."""
    return any(blocks.pool.reference_count(block_id) > 1 for block_id in blocks._blocks_at(sequence_id, position))


def test_fork_of_full_blocks_needs_no_copy():
    blocks = BlockManager(8, 4, NoPrefixCache())
    blocks.allocate(0, 8, [])
    blocks.fork(0, 1, 8)
    assert blocks.append(1, 9, write_from=8) == []
    assert blocks.table(1).block_ids[:2] == blocks.table(0).block_ids
    assert not is_shared(blocks, 1, 8)
    assert is_shared(blocks, 1, 7)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 5), st.integers(1, 12)),
        st.tuples(st.just("fork"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("append"), st.integers(0, 5), st.integers(1, 5)),
        st.tuples(st.just("free"), st.integers(0, 5), st.just(0)),
    ),
    max_size=60,
)


@given(operations=operations, block_size=st.sampled_from([1, 2, 4]))
def test_no_block_is_lost_and_a_written_block_has_one_holder(operations, block_size):
    blocks = BlockManager(24, block_size, NoPrefixCache())
    lengths: dict[int, int] = {}
    for name, sequence, argument in operations:
        match name:
            case "allocate" if sequence not in lengths:
                if blocks.fit(blocks.num_blocks_for(argument)) is Fit.OK:
                    blocks.allocate(sequence, argument, [])
                    lengths[sequence] = argument
            case "fork" if sequence in lengths and argument not in lengths:
                blocks.fork(sequence, argument, lengths[sequence])
                lengths[argument] = lengths[sequence]
            case "append" if sequence in lengths:
                old, new = lengths[sequence], lengths[sequence] + argument
                before = blocks.pool.num_free
                if blocks.num_blocks_to_append([(sequence, new, old)]) <= before:
                    expected = blocks.num_blocks_to_append([(sequence, new, old)])
                    blocks.append(sequence, new, old)
                    assert before - blocks.pool.num_free == expected
                    assert not any(is_shared(blocks, sequence, position) for position in range(old, new))
                    lengths[sequence] = new
            case "free" if sequence in lengths:
                blocks.free(sequence)
                del lengths[sequence]
        check_blocks(blocks)
    for sequence in lengths:
        blocks.free(sequence)
    assert blocks.pool.num_free == 24


def test_tables_that_go_on_from_each_other_change_all_at_once():
    blocks = BlockManager(8, 2, NoPrefixCache())
    for sequence_id in (0, 1, 2):
        blocks.allocate(sequence_id, 4, [])
    before = [list(blocks.table(i).block_ids) for i in range(3)]
    blocks.refork({0: 1, 1: 0, 2: 1})
    assert [blocks.table(i).block_ids for i in range(3)] == [before[1], before[0], before[1]]
    assert [blocks.pool.reference_count(i) for i in before[1]] == [2, 2]
    assert [blocks.pool.reference_count(i) for i in before[2]] == [0, 0]
    check_blocks(blocks)
    blocks.refork({2: 1})
    blocks.refork({0: 0, 2: 1})
    check_blocks(blocks)


def test_blocks_of_one_token_each_sequence_gets_a_slot_of_its_own_and_keeps_those_it_has():
    blocks = BlockManager(20, 1, NoPrefixCache())
    for sequence_id, length in ((1, 3), (2, 5)):
        blocks.allocate(sequence_id, length, [])
    before = {i: list(blocks.table(i).block_ids) for i in (1, 2)}
    blocks.supply.append_each([blocks.table(2), blocks.table(1)])
    blocks.supply.append_each([blocks.table(1)])
    assert blocks.table(1).block_ids[:3] == before[1]
    assert blocks.table(2).block_ids[:5] == before[2]
    slots = blocks.table(1).block_ids + blocks.table(2).block_ids
    assert len(slots) == len(set(slots)) == 11
    assert blocks.pool.num_used == 11
    check_blocks(blocks)


def test_plans_carry_the_new_slots_only():
    blocks = BlockManager(20, 1, NoPrefixCache())
    blocks.allocate(1, 3, [])
    blocks.table(1).take_changes()
    blocks.supply.append_each([blocks.table(1)])
    assert blocks.table(1).take_changes() == (3, (blocks.table(1).block_ids[3],))


def test_what_a_taken_slot_held_is_found_no_more():
    cache = ChainedPrefixCache(1, blocks_per_entry=2)
    blocks = BlockManager(4, 1, cache)
    blocks.allocate(1, 3, [])
    cache.insert(make_sequence([7, 8, 9]), "", blocks.table(1).block_ids, 2)
    assert len(cache.known) == 1
    blocks.free(1)
    blocks.allocate(2, 1, [])
    for _ in range(3):
        blocks.supply.append_each([blocks.table(2)])
    assert len(cache.known) == 0


def test_what_stands_before_the_last_known_token_is_found():
    """Not what is known but was not computed: a prompt in chunks, draws whose ids are pending."""
    for num_drawn, num_pending, found in ((0, 0, []), (0, 1, []), (1, 0, [0]), (3, 2, [0]), (4, 1, [0, 1])):
        blocks = BlockManager(4, 4, ChainedPrefixCache(4))
        sequence = Sequence(1, 0, 0, [5] * (5 + num_drawn), 5, 99)
        sequence.token_ids += [PENDING_TOKEN_ID] * num_pending
        blocks.allocate(1, sequence.num_tokens, [])
        blocks.cache_decoded(sequence, "")
        assert blocks.match_prefix(make_sequence([5] * 30), "") == found


def test_blocks_of_one_token_under_pressure_give_what_larger_blocks_give():
    def run(block_size: int) -> Harness:
        chance = random.Random(2)
        harness = Harness(num_blocks=48 // block_size, block_size=block_size, max_num_seqs=8)
        for seed in range(8):
            prompt = tuple(chance.randrange(3) for _ in range(chance.randint(1, 12)))
            harness.add(harness.request(prompt, 16, n=1 + seed % 2, seed=seed))
        harness.add(harness.beam_request((1, 2, 0), 6, width=3, n=3))
        harness.run()
        for name, request in harness.requests.items():
            for choice in range(request.sampling.n):
                harness.check_against_oracle(name, choice)
        return harness

    slots, blocks = run(1), run(4)
    assert slots.tokens == blocks.tokens
    assert not any(plan.copies for plan in slots.toy.plans), "a slot is written once"
    assert any(plan.copies for plan in blocks.toy.plans)
    assert sum(stats.num_preemptions for stats, _, _ in slots.sink.requests) > 0


def windowed(num_blocks: int = 12, num_host_blocks: int = 0) -> BlockManager:
    """Blocks of 2 tokens, of which a query sees 5."""
    cache = ChainedPrefixCache(2, window=5)
    return BlockManager(num_blocks, 2, cache, num_host_blocks, window=AttentionWindow(5, 4))


def test_a_sequence_gives_back_what_none_of_its_tokens_sees_any_more():
    blocks = windowed()
    blocks.allocate(0, 10, [])
    blocks.forget_unseen(0, 7)
    assert blocks.table(0).first == 1, "the token at 7 sees from 3 on"
    blocks.forget_unseen(0, 8)
    assert blocks.table(0).first == 2 and blocks.pool.num_used == 3
    blocks.forget_unseen(0, 5)
    assert blocks.table(0).first == 2, "and nobody goes back"
    blocks.append(0, 12, 10)
    assert blocks.pool.num_used == 4 and len(blocks.table(0).block_ids) == 6
    check_blocks(blocks)
    blocks.free(0)
    assert blocks.pool.num_used == 0


def test_a_block_that_another_shares_goes_only_when_both_have_given_it_back():
    blocks = windowed()
    blocks.allocate(0, 10, [])
    blocks.fork(0, 1, 10)
    blocks.forget_unseen(0, 9)
    assert blocks.pool.num_used == 5
    blocks.fork(0, 2, 10)
    blocks.forget_unseen(1, 9)
    assert blocks.pool.num_used == 3
    blocks.refork({0: 1, 1: 2})
    check_blocks(blocks)
    for sequence_id in range(3):
        blocks.free(sequence_id)
    assert blocks.pool.num_used == 0


def test_a_beam_goes_on_from_one_that_has_given_back_more_or_less():
    blocks = windowed()
    for sequence_id, position in ((0, 9), (1, 7)):
        blocks.allocate(sequence_id, 10, [])
        blocks.forget_unseen(sequence_id, position)
    blocks.refork({0: 1, 1: 0})
    assert [blocks.table(i).first for i in (0, 1)] == [1, 2]
    check_blocks(blocks)


def test_holes_outlast_a_stay_on_the_host():
    blocks = windowed(num_host_blocks=12)
    blocks.allocate(0, 10, [])
    blocks.forget_unseen(0, 9)
    blocks.swap_space.finish(blocks.swap_out([0]).transfer_id)
    assert blocks.pool.num_used == 0 and blocks.swap_space.num_used == 3
    blocks.swap_in([0])
    assert blocks.table(0).first == 2 and len(blocks.table(0).held) == 3
    check_blocks(blocks)


def test_a_cached_end_is_taken_without_its_beginning():
    blocks, tokens = windowed(), list(range(11))
    sequence = make_sequence(tokens)
    blocks.allocate(0, 10, [])
    blocks.cache_prefix(sequence, "", 10)
    blocks.free(0)
    prefix = blocks.match_prefix(make_sequence(tokens), "")
    assert prefix[:3] == [HOLE] * 3 and blocks.num_free_among(prefix) == 2
    blocks.allocate(1, 11, prefix)
    assert blocks.pool.num_used == 3
    check_blocks(blocks)


def test_under_a_window_any_length_fits_once_the_most_that_is_held_does():
    assert windowed(5).longest_sequence is None
    assert windowed(4).longest_sequence == 8
    assert BlockManager(5, 2, NoPrefixCache()).longest_sequence == 10


def parted(num_blocks: int = 40, num_host_blocks: int = 0) -> BlockManager:
    """As `windowed`, of one group of layers that sees everything and two that see 5 tokens."""
    groups = TableGroups(1, 2)
    cache = ChainedPrefixCache(2, window=5, groups=groups)
    return BlockManager(num_blocks, 2, cache, num_host_blocks, window=AttentionWindow(5, 4, groups))


def test_of_several_groups_of_layers_those_with_a_window_give_back():
    blocks = parted(num_host_blocks=40)
    blocks.allocate(0, 10, [])
    assert blocks.pool.num_used == 15
    blocks.forget_unseen(0, 8)
    assert blocks.pool.num_used == 15 - 2 * 2
    blocks.fork(0, 1, 9)
    assert blocks.num_blocks_to_append([(0, 10, 9), (1, 10, 9)]) == 3, "one of both copies the last unit"
    copies = blocks.append(0, 10, 9)
    assert [copy.source for copy in copies] == blocks.table(1).block_ids[-3:]
    assert [copy.destination for copy in copies] == blocks.table(0).block_ids[-3:]
    blocks.refork({1: 0})
    assert blocks.table(1).block_ids == blocks.table(0).block_ids
    blocks.free(1)
    blocks.swap_space.finish(blocks.swap_out([0]).transfer_id)
    assert blocks.pool.num_used == 0 and blocks.swap_space.num_used == 11
    blocks.swap_in([0])
    table = blocks.table(0)
    assert [index for index, block_id in enumerate(table.block_ids) if block_id == HOLE] == [1, 2, 4, 5]
    assert table.first == 2 and blocks.supply.append_each([table] * 3) == table.block_ids[-3:]
    check_blocks(blocks)


def test_of_several_groups_those_that_see_everything_bound_the_longest_sequence():
    most = AttentionWindow(5, 4).most_units(2)
    assert parted(3 * most - 1).longest_sequence == 2 * (most - 1)
    assert parted(3 * most).longest_sequence == 2 * most
    assert parted(3 * most + 7).longest_sequence == 2 * (most + 7)


def test_a_cached_beginning_is_held_whole_by_what_sees_everything():
    blocks, tokens = parted(), list(range(11))
    sequence = make_sequence(tokens)
    blocks.allocate(0, 10, [])
    blocks.cache_prefix(sequence, "", 10)
    prefix = blocks.match_prefix(make_sequence(tokens), "")
    assert [block_id == HOLE for block_id in prefix] == [False, True, True] * 3 + [False] * 6
    assert blocks.num_also_held_by_others(prefix, 0) == len(prefix)
    assert blocks.num_also_held_by_others(prefix, 1) == 0
    blocks.free(0)
    assert blocks.num_free_among(prefix) == 9
    blocks.allocate(1, 11, prefix)
    assert blocks.pool.num_used == 9 + 3
    check_blocks(blocks)
