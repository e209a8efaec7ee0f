"""Faults put on purpose into prompts that take their blocks chunk by chunk: each is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler import group_start, lane_scheduling
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.group_start import GroupStart
from service.scheduler.memory_need import num_shared_tokens
from tests.engine.harness import Harness

Patch = pytest.MonkeyPatch


def scenario(overlap: bool) -> None:
    """Long prompts beside choices that are preempted and share their prompt again, in a tiny cache."""
    harness = Harness(18, 2, 6, max_num_batched_tokens=8, overlap=overlap, prefix_cache=NoPrefixCache())
    harness.add(harness.request((1, 2, 3), 16, seed=1))
    harness.add(harness.request((4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 9, 4, 5, 6), 8, n=2, seed=2))
    harness.step()
    harness.add(harness.request((4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 1, 2, 3, 1, 2, 3), 6, seed=3))
    harness.add(harness.request(tuple(range(20)), 4, seed=4))
    harness.run(max_steps=300)
    preempted = {stats.n for stats, _, _ in harness.sink.requests if stats.num_preemptions}
    assert 2 in preempted
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    harness.check_nothing_left()


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_passes(overlap: bool):
    scenario(overlap)


def a_chunk_beyond_its_blocks(patch: Patch) -> None:
    room_for_chunk = BlockGrowth.room_for_chunk

    def all_of_it(self, group, sequence, num_tokens):
        room_for_chunk(self, group, sequence, num_tokens - 1)
        return num_tokens

    patch.setattr(BlockGrowth, "room_for_chunk", all_of_it)


def a_first_chunk_beyond_its_blocks(patch: Patch) -> None:
    allocate = group_start.BlockManager.allocate
    patch.setattr(
        group_start.BlockManager,
        "allocate",
        lambda self, sequence_id, num_tokens, prefix: allocate(self, sequence_id, max(1, num_tokens - 2), prefix),
    )


def choices_that_never_share_their_prompt_again(patch: Patch) -> None:
    for module in (group_start, lane_scheduling):
        patch.setattr(module, "share_prompt", lambda group, blocks: None)


def choices_that_share_their_prompt_too_early(patch: Patch) -> None:
    allocate = GroupStart._allocate

    def and_share(self, group, prefix, draft):
        allocate(self, group, prefix, draft)
        for sequence in group.computing[1:]:
            if not self._blocks.has_table(sequence.sequence_id):
                self._blocks.fork(group.leader.sequence_id, sequence.sequence_id, 10**6)
                sequence.num_computed_tokens = num_shared_tokens(group.request, 2)

    patch.setattr(GroupStart, "_allocate", and_share)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        a_chunk_beyond_its_blocks,
        a_first_chunk_beyond_its_blocks,
        choices_that_never_share_their_prompt_again,
        choices_that_share_their_prompt_too_early,
    ],
)
def test_a_fault_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap)
