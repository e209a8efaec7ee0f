from __future__ import annotations

from dataclasses import replace

import pytest

from service.core.adapter import Adapter
from service.core.layer_groups import TableGroups
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_table import HOLE
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.memory_need import (
    num_blocks_alone,
    num_blocks_at_most,
    num_blocks_now,
    num_blocks_to_come,
    num_blocks_to_start,
    num_shared_tokens,
)


def make_request(prompt: int, max_tokens: int, n: int = 1) -> Request:
    return Request("r", tuple(range(prompt)), SamplingParams(max_tokens=max_tokens, n=n), 0.0)


def test_choices_share_the_full_blocks_of_the_prompt():
    blocks = BlockManager(100, 4, NoPrefixCache())
    assert num_shared_tokens(make_request(10, 1), 4) == 8
    # two shared blocks; each choice has tokens 8 .. 10 + 3 - 2 of its own
    assert num_blocks_at_most(make_request(10, 3, n=5), blocks) == 2 + 5 * 1
    assert num_blocks_at_most(make_request(10, 4, n=5), blocks) == 2 + 5 * 2


def test_the_last_token_is_never_cached():
    blocks = BlockManager(100, 4, NoPrefixCache())
    assert num_blocks_at_most(make_request(3, 1), blocks) == 1
    assert num_blocks_at_most(make_request(4, 1), blocks) == 1
    assert num_blocks_at_most(make_request(4, 2), blocks) == 2


def test_before_the_fork_only_the_leader_needs_room():
    blocks = BlockManager(100, 4, NoPrefixCache())
    group = SequenceGroup(make_request(10, 3, n=5), 0)
    assert num_blocks_now(group, blocks) == 3
    group.is_forked = True
    assert num_blocks_now(group, blocks) == 2 + 5


def test_of_a_prompt_under_way_the_blocks_of_its_further_chunks_are_to_come():
    blocks = BlockManager(100, 4, NoPrefixCache())
    group = SequenceGroup(make_request(30, 3), 0)
    blocks.allocate(group.leader.sequence_id, 9, prefix=[])
    assert num_blocks_to_come(group, blocks) == 8 - 3
    blocks.append(group.leader.sequence_id, 30, 9)
    assert num_blocks_to_come(group, blocks) == 0


def test_of_choices_that_wait_for_their_prompt_what_is_their_own_is_to_come():
    blocks = BlockManager(100, 4, NoPrefixCache())
    group = SequenceGroup(make_request(10, 9, n=3), 0)
    group.is_forked = True
    for sequence in group.live:
        sequence.token_ids = [*range(13)]
    blocks.allocate(group.leader.sequence_id, 4, prefix=[])
    assert num_blocks_to_come(group, blocks) == num_blocks_now(group, blocks) - 1 == 4 + 2 + 2 - 1


@pytest.mark.parametrize(("max_tokens", "num_blocks"), [(20, 3 + 1), (2, 3)])
def test_a_swapped_group_comes_back_with_room_to_grow_unless_it_has_its_last_block(max_tokens, num_blocks):
    blocks = BlockManager(100, 4, NoPrefixCache(), num_host_blocks=100)
    group = SequenceGroup(make_request(10, max_tokens), 0)
    blocks.allocate(group.leader.sequence_id, 10, prefix=[])
    blocks.swap_out([group.leader.sequence_id])
    assert num_blocks_to_start(group, [], blocks) == num_blocks


def test_a_cached_block_costs_a_free_one_only_while_nobody_holds_it():
    blocks = BlockManager(100, 4, NoPrefixCache())
    group = SequenceGroup(make_request(10, 3), 0)
    blocks.allocate(77, 4, prefix=[])
    prefix = blocks.table(77).block_ids
    assert num_blocks_to_start(group, prefix, blocks) == 2
    blocks.free(77)
    assert num_blocks_to_start(group, prefix, blocks) == 3


def test_an_adapter_costs_blocks_as_long_as_nobody_runs_with_it():
    blocks, adapter = BlockManager(100, 4, NoPrefixCache(), num_adapter_slots=1), Adapter("poet", 1, 7, "ab")
    request = replace(make_request(10, 3), adapter=adapter)
    group = SequenceGroup(request, 0)
    assert num_blocks_alone(request, blocks) == 7 + num_blocks_at_most(request, blocks) == 7 + 3
    assert num_blocks_to_start(group, [], blocks) == 7 + 3
    blocks.adapter_slots.pin(adapter)
    blocks.load_adapter(adapter)
    assert num_blocks_to_start(group, [], blocks) == 3
    blocks.adapter_slots.unpin(adapter)
    assert num_blocks_to_start(group, [], blocks) == 7 + 3, "of those that can be taken, where its own are now"


def test_under_a_window_a_request_needs_what_it_holds_at_once():
    window = AttentionWindow(20, 12)
    blocks, most = BlockManager(100, 4, NoPrefixCache(), window=window), window.most_units(4)
    assert most == 9
    assert num_blocks_at_most(make_request(10, 3), blocks) == 3
    assert num_blocks_at_most(make_request(1000, 1000), blocks) == most
    assert num_blocks_at_most(make_request(10, 1000, n=3), blocks) == 2 + 3 * most
    group = SequenceGroup(make_request(1000, 5), 0)
    assert num_blocks_now(group, blocks) == num_blocks_to_start(group, [], blocks) == most
    blocks.allocate(group.leader.sequence_id, 12, prefix=[])
    assert num_blocks_to_come(group, blocks) == most - 3


def test_a_cached_end_spares_all_that_lies_before_it():
    blocks = BlockManager(100, 4, NoPrefixCache(), window=AttentionWindow(20, 12))
    group = SequenceGroup(make_request(26, 5), 0)
    blocks.allocate(77, 12, prefix=[])
    prefix = [HOLE, *blocks.table(77).block_ids]
    assert num_blocks_to_start(group, prefix, blocks) == 7 - 4


def test_of_groups_that_see_everything_all_is_needed_and_of_the_others_a_window():
    window = AttentionWindow(20, 12, TableGroups(2, 3))
    blocks, most = BlockManager(10_000, 4, NoPrefixCache(), window=window), window.most_units(4)
    assert num_blocks_at_most(make_request(10, 3), blocks) == 3 * 5
    assert num_blocks_at_most(make_request(1000, 1001), blocks) == 500 * 2 + most * 3
    group = SequenceGroup(make_request(1000, 5), 0)
    assert num_blocks_now(group, blocks) == 250 * 2 + most * 3
    blocks.allocate(group.leader.sequence_id, 40, prefix=[])
    blocks.forget_unseen(group.leader.sequence_id, 40)
    table = blocks.table(group.leader.sequence_id)
    assert num_blocks_to_come(group, blocks) == 250 * 2 + most * 3 - len(table.held)
    prefix = list(table.block_ids)
    other = SequenceGroup(make_request(1000, 5), 1)
    assert num_blocks_to_start(other, prefix, blocks) == 250 * 2 + most * 3 - len(table.held)
