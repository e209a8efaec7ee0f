from __future__ import annotations

import random

from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from tests.engine.harness import Harness
from tests.kvcache.test_prefix_cache import make_sequence


def test_each_sequence_gets_a_slot_of_its_own_and_keeps_those_it_has():
    blocks = BlockManager(20, 1, NoPrefixCache())
    table = blocks.token_table
    assert table is not None
    for sequence_id, length in ((1, 3), (2, 5)):
        blocks.allocate(sequence_id, length, [])
    before = {i: list(blocks.table(i).block_ids) for i in (1, 2)}
    table.append_each([2, 1])
    table.append_each([1])
    assert blocks.table(1).block_ids[:3] == before[1]
    assert blocks.table(2).block_ids[:5] == before[2]
    slots = [table.slot(1, position) for position in range(5)] + [table.slot(2, position) for position in range(6)]
    assert len(set(slots)) == 11
    assert blocks.pool.num_used == 11
    blocks.check_invariants()


def test_plans_carry_the_new_slots_only():
    blocks = BlockManager(20, 1, NoPrefixCache())
    assert blocks.token_table is not None
    blocks.allocate(1, 3, [])
    blocks.table(1).take_changes()
    blocks.token_table.append_each([1])
    assert blocks.table(1).take_changes() == (3, (blocks.token_table.slot(1, 3),))


def test_what_a_taken_slot_held_is_found_no_more():
    cache = ChainedPrefixCache(1, blocks_per_entry=2)
    blocks = BlockManager(4, 1, cache)
    assert blocks.token_table is not None
    blocks.allocate(1, 3, [])
    cache.insert(make_sequence([7, 8, 9]), "", blocks.table(1).block_ids, 2)
    assert len(cache) == 1
    blocks.free(1)
    blocks.allocate(2, 1, [])
    for _ in range(3):
        blocks.token_table.append_each([2])
    assert len(cache) == 0


def test_only_blocks_of_one_token_are_a_token_table():
    assert BlockManager(4, 2, NoPrefixCache()).token_table is None


def test_served_under_pressure_it_gives_what_larger_blocks_give():
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
