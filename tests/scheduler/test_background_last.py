from __future__ import annotations

import random
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.sequence_group import SequenceGroup
from service.scheduler.background_chunks import ON_CPU, QUIET_S
from service.scheduler.preemption import AlwaysSwap
from service.settings.settings import Settings
from tests.engine.harness import Harness
from tests.examples import examples

POLICIES = get_args(Settings.model_fields["scheduling_policy"].annotation)
"""All policies of the setting."""


@pytest.mark.parametrize("policy", POLICIES)
def test_the_background_starts_when_nobody_else_waits_and_as_it_came(policy: str):
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=8, policy=policy)
    for is_background in (True, True, False, True, False):
        harness.add(harness.request((1, 2), 2, is_background=is_background))
    harness.run()
    assert list(harness.finals) == ["request-2", "request-4", "request-0", "request-1", "request-3"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_background_gives_its_memory_up_first(policy: str):
    harness = Harness(num_blocks=6, block_size=2, max_num_batched_tokens=32, policy=policy)
    for number, is_background in enumerate((True, False, True)):
        harness.add(harness.request((1, 2), 8, seed=number, is_background=is_background))
    harness.run()
    assert next(iter(harness.finals)) == "request-1"
    preempted = [stats.num_preemptions for stats, _, _ in harness.sink.requests]
    assert sum(preempted) > 0
    assert preempted[0] == 0, "the one that is not in the background, which ends first"
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_prompts_of_others_are_computed_before_those_of_the_background():
    """Before a background prompt that has already begun, too."""
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
    harness.add(harness.request(tuple(range(1, 41)), 2, is_background=True))
    harness.step()
    harness.add(harness.request((1, 2, 3), 1))
    harness.run()
    assert list(harness.finals) == ["request-1", "request-0"]


def chunks(harness: Harness, request_id: str) -> list[int]:
    """Prompt tokens of this request in each iteration that computed some, without the last one."""
    group = harness.scheduler.pool.get(request_id)
    assert group is not None
    computed = [0]
    while group.leader.num_tokens_to_compute > 1:
        harness.step()
        computed.append(group.leader.num_computed_tokens)
    return [after - before for before, after in pairwise(computed)][:-1]


def test_beside_others_a_prompt_in_the_background_takes_few_tokens_of_an_iteration():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64)
    harness.add(harness.request((1, 2, 3), 60))
    harness.step()
    for _ in range(2):
        harness.add(harness.request(tuple(range(1, 91)), 2, is_background=True))
    assert set(chunks(harness, "request-1")) == {ON_CPU}
    assert "request-0" not in harness.finals
    harness.run()
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_alone_and_a_while_after_the_last_of_the_others_it_takes_all():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64)
    harness.add(harness.request((1, 2, 3), 1))
    harness.run()
    harness.add(harness.request(tuple(range(1, 91)), 2, is_background=True))
    harness.step()
    harness.step()
    (group,) = harness.scheduler.pool.groups()
    assert group.leader.num_computed_tokens == 2 * ON_CPU, "others may come again"
    harness.clock.advance(QUIET_S)
    harness.step()
    assert group.leader.num_computed_tokens == 2 * ON_CPU + 64


MOST_CHATS, LONGEST_PROMPT, LONGEST_ANSWER = 2, 24, 12


def is_chat(group: SequenceGroup) -> bool:
    return not group.request.is_background


def is_swapping(harness: Harness, group: SequenceGroup) -> bool:
    """Whether its blocks are being swapped out or in."""
    return harness.blocks.swap_space.is_swapping(group.leader.sequence_id)


def check_turns(harness: Harness, chance: random.Random, most_iterations_a_line: int) -> None:
    """Check the laws in a random history of batch lines (background) and of chats, so few that these alone always fit.

    No background request starts while a chat waits. No chat is preempted while a background request has memory that
    could be taken. A chat starts as soon as enough background requests can have been preempted, one after the other.
    """
    pool = harness.scheduler.pool
    starts_by: dict[str, int] = {}
    for step in range(80):
        chats = [group for group in pool.groups() if is_chat(group)]
        while chance.random() < 0.3:
            is_background = len(chats) == MOST_CHATS or chance.random() < 0.7
            request = harness.request(
                tuple(chance.choices(range(100), k=chance.randint(1, LONGEST_PROMPT))),
                chance.randint(1, LONGEST_ANSWER),
                n=chance.randint(1, 2) if is_background else 1,
                priority=chance.randint(-1, 1),
                client=chance.choice("ab"),
                is_background=is_background,
            )
            assert harness.add(request)
            if not is_background:
                chats.append(pool.groups()[-1])
                starts_by[request.request_id] = step + 3 + most_iterations_a_line * len(pool.running)
        times = {id(group): group.num_preemptions for group in pool.groups()}
        before, moving = list(pool.running), {id(group) for group in pool.groups() if is_swapping(harness, group)}
        harness.step()
        assert all(group.num_preemptions == times.get(id(group), 0) for group in pool.running), "out and in at once"
        if any(not is_chat(group) for group in pool.running if group not in before):
            assert all(not is_chat(group) or id(group) in moving for group in pool.waiting)
        if any(is_chat(group) for group in before if group in pool.waiting):
            assert all(is_chat(group) or id(group) in moving for group in pool.running)
        for group in pool.waiting:
            assert not is_chat(group) or group.num_preemptions or step <= starts_by[group.request.request_id]


@settings(max_examples=examples(10), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(24, 40),
    num_seqs=st.integers(2, 8),
    overlap=st.booleans(),
    num_lanes=st.sampled_from([1, 1, 2]),
    delay=st.sampled_from([None, 0, 2]),
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_chat_waits_for_no_batch(
    policy: str, seed: int, num_blocks: int, num_seqs: int, overlap: bool, num_lanes: int, delay: int | None
):
    swap = {} if delay is None else {"preemption": AlwaysSwap(), "num_host_blocks": num_blocks, "transfer_delay": delay}
    harness = Harness(
        num_blocks,
        4,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=MOST_CHATS * LONGEST_PROMPT + num_seqs,
        policy=policy,
        overlap=overlap,
        num_lanes=num_lanes,
        max_preemptions=2,
        **swap,
    )
    check_turns(harness, random.Random(seed), max(1 + overlap, num_lanes) + (delay or 0))
    harness.run()
