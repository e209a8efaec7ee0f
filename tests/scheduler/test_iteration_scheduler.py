from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.scheduler.cached_tokens import num_cached_tokens
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.lane_scheduling import LaneScheduling
from service.scheduler.preemption import AlwaysSwap
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import Harness
from tests.examples import examples
from tests.scheduler.test_decode_batch import play


def scheduled_tokens(harness: Harness) -> dict[int, int]:
    return {item.sequence_id: len(item.token_ids) for item in harness.toy.plans[-1].scheduled}


def test_a_long_prompt_is_cut_into_chunks_and_decodes_go_on_beside_it():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
    harness.add(harness.request((1, 2), 10))
    harness.step()
    harness.add(harness.request(tuple(range(20)), 2))
    chunks = []
    for _ in range(3):
        harness.step()
        tokens = scheduled_tokens(harness)
        assert tokens[0] == 1
        chunks.append(tokens[1])
    assert chunks == [7, 7, 6]
    assert len(harness.tokens["request-0", 0]) == 4


def test_a_new_request_joins_the_next_iteration_and_a_finished_one_leaves_at_once():
    harness = Harness()
    harness.add(harness.request((1,), 1))
    harness.add(harness.request((2,), 3))
    harness.step()
    assert "request-0" in harness.finals
    harness.add(harness.request((3,), 1))
    harness.step()
    assert set(scheduled_tokens(harness)) == {1, 2}


def test_seats_are_counted_per_choice():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    harness.add(harness.request((1,), 5, n=3))
    harness.add(harness.request((2,), 5, n=2))
    harness.add(harness.request((3,), 5))
    harness.step()
    assert [g.request.request_id for g in harness.scheduler.pool.running] == ["request-0"]
    assert len(harness.scheduler.pool.waiting) == 2, "first come, first served: nobody overtakes"
    harness.run()
    assert len(harness.finals) == 3


def test_the_latest_arrival_is_preempted_and_returns_before_newer_ones():
    harness = Harness(num_blocks=4, block_size=2, max_num_batched_tokens=32)
    for _ in range(3):
        harness.add(harness.request((1, 2), 5))
        harness.clock.advance(0.001)
    order = []
    while harness.engine.has_work:
        harness.step()
        order = list(harness.finals)
    assert order == ["request-0", "request-1", "request-2"]
    preempted = [stats.num_preemptions for stats, _, _ in harness.sink.requests]
    assert preempted[0] == 0


class Turns:
    """Number of iterations in which each request has run. behind: the most by which a request was behind one that
    arrived later, while both ran."""

    def __init__(self, harness: Harness) -> None:
        self.behind = 0
        self._harness = harness
        self._iterations: Counter[int] = Counter()

    def step(self) -> None:
        harness = self._harness
        running_before, num_plans = list(harness.scheduler.pool.running), len(harness.toy.plans)
        harness.step()
        if len(harness.toy.plans) == num_plans:
            return
        scheduled = {item.sequence_id for item in harness.toy.plans[-1].scheduled}
        both = [group for group in running_before if group in harness.scheduler.pool.running]
        both.sort(key=lambda group: group.arrival_order)
        self._iterations.update(
            group.arrival_order for group in both if any(s.sequence_id in scheduled for s in group.sequences)
        )
        counts = [self._iterations[group.arrival_order] for group in both]
        self.behind = max([self.behind, *(max(counts[i:]) - count for i, count in enumerate(counts))])


@settings(max_examples=examples(45), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(18, 60),
    extra=st.integers(1, 16),
    overlap=st.booleans(),
    most_choices=st.sampled_from([1, 3]),
    delay=st.sampled_from([None, 0, 3]),
)
def test_orcas_fcfs_property(
    seed: int, num_blocks: int, extra: int, overlap: bool, most_choices: int, delay: int | None
):
    """If x arrived before y, x has run in at least as many iterations as y, as long as both run. Exceptions are those
    that FirstComeFirstServed states, and they are bounded: one iteration for a request whose ids are needed on the host
    (with overlap), and those that swapping out and in takes, at least one each. delay: further iterations per transfer;
    None: preempted requests are recomputed."""
    swap = {} if delay is None else {"preemption": AlwaysSwap(), "num_host_blocks": num_blocks, "transfer_delay": delay}
    harness = Harness(num_blocks, 4, max_num_seqs=6, max_num_batched_tokens=6 + extra, overlap=overlap, **swap)
    chance, turns = random.Random(seed), Turns(harness)
    for _ in range(160):
        if chance.random() < 0.3:
            prompt = tuple(range(chance.randint(1, 24)))
            harness.add(harness.request(prompt, chance.randint(1, 12), n=chance.randint(1, most_choices)))
        turns.step()
    waits_for_ids = int(overlap and (most_choices > 1 or delay is not None))
    waits_for_blocks = 0 if delay is None else 2 * (1 + delay + waits_for_ids)
    assert turns.behind <= waits_for_ids + waits_for_blocks


def test_who_needs_its_ids_on_the_host_falls_behind_by_one_iteration_where_they_overlap():
    """The choices of a prompt fork with the first id, which is drawn while the next iteration is decided."""
    for overlap, behind in ((False, 0), (True, 1)):
        harness = Harness(overlap=overlap)
        harness.add(harness.request((1, 2, 3), 12, n=2))
        harness.add(harness.request((4, 5, 6), 12))
        turns = Turns(harness)
        while harness.engine.has_work:
            turns.step()
        assert turns.behind == behind


@pytest.mark.parametrize("delay", [0, 3, 6])
def test_whose_blocks_are_on_their_way_back_falls_behind_for_as_long_as_they_take(delay: int):
    """The second request has run in two iterations when the first one needs its memory. The third one starts when the
    second returns, and runs without waiting."""
    harness = Harness(6, max_num_batched_tokens=32, preemption=AlwaysSwap(), num_host_blocks=6, transfer_delay=delay)
    for prompt_len, max_tokens in ((15, 4), (7, 12), (3, 12)):
        harness.add(harness.request(tuple(range(prompt_len)), max_tokens))
        harness.clock.advance(0.001)
    turns = Turns(harness)
    while harness.engine.has_work:
        turns.step()
    assert turns.behind == max(0, 1 + delay - 2)


def test_after_a_preemption_choices_share_the_prompt_again():
    harness = Harness(num_blocks=8, block_size=2, max_num_seqs=8, max_num_batched_tokens=64)
    harness.add(harness.request((1, 2), 10))
    harness.clock.advance(0.001)
    harness.add(harness.request((1, 2, 3, 4), 4, n=2))
    harness.run()
    assert harness.sink.requests[-1][0].num_preemptions + harness.sink.requests[0][0].num_preemptions > 0
    for request_id, choice in (("request-0", 0), ("request-1", 0), ("request-1", 1)):
        harness.check_against_oracle(request_id, choice)


def test_who_is_on_its_way_back_is_not_taken_again():
    """The oldest needs more memory before the youngest is swapped in: it skips iterations, then takes those blocks."""
    harness = Harness(24, 1, preemption=AlwaysSwap(), num_host_blocks=24, transfer_delay=14, max_num_batched_tokens=64)
    for prompt, max_tokens in (((1, 2, 3), 21), (tuple(range(5, 15)), 6), ((9, 8, 7, 6), 14)):
        harness.add(harness.request(prompt, max_tokens))
    sat_out = 0
    while harness.engine.has_work:
        swap_space, running = harness.blocks.swap_space, harness.scheduler.pool.running
        returning = [g for g in running if swap_space.is_swapping(g.leader.sequence_id)]
        harness.step()
        sat_out += bool(returning) and not harness.toy.plans[-1].scheduled
        num_cached = num_cached_tokens(harness.blocks, harness.scheduler.lanes)
        batch = harness.scheduler.lanes.batch
        batch.write_tokens()
        batched = [group for group in harness.scheduler.pool.running if group in batch]
        held = sum(len(group.leader.token_ids) - 1 for group in batched)
        held += sum(s.num_computed_tokens for g in batch.unbatched.values() for s in g.live)
        assert num_cached == held, "what is on its way to the host is not counted"
    assert sat_out > 0
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


@pytest.mark.parametrize("returns", [False, True])
def test_who_was_preempted_by_a_launch_that_failed_is_released_by_the_next(returns: bool):
    """The executor is told before the request is recomputed, or if it never is."""
    executor = FaultyExecutor(frozenset(), failing_launches=frozenset({2}), num_blocks=3)
    harness = Harness(num_blocks=3, executor=executor)
    for _ in range(2):
        harness.add(harness.request((1, 2, 3, 4), 4))
    harness.step()
    harness.step()
    assert harness.finals["request-0"].outcome is Outcome.FAILED, "which took the other one's block"
    if not returns:
        harness.engine.requests.abort("request-1")
        harness.collect()
    harness.add(harness.request((5,), 2))
    harness.run()
    assert set(executor.plans[1].released) == {1, 2}, "the rows of both"
    assert [item.sequence_id for item in executor.plans[1].scheduled] == ([1, 2] if returns else [2])
    for request_id in ("request-1", "request-2") if returns else ("request-2",):
        harness.check_against_oracle(request_id)


@pytest.mark.parametrize("overlap", [False, True])
def test_decodes_alone_are_decided_as_they_are_among_others(overlap: bool, monkeypatch: pytest.MonkeyPatch):
    alone = IterationScheduler._schedule_decodes
    num_alone = 0

    def counted(self: IterationScheduler, *batch):
        nonlocal num_alone
        plan = alone(self, *batch)
        num_alone += plan is not None
        return plan

    def histories() -> list[object]:
        return [play(seed, num_blocks=12, block_size=2, overlap=overlap, swap=seed % 2 == 1)[0] for seed in range(8)]

    monkeypatch.setattr(IterationScheduler, "_schedule_decodes", counted)
    want = histories()
    assert num_alone > 50
    monkeypatch.setattr(IterationScheduler, "_schedule_decodes", lambda *_: None)
    assert histories() == want


def test_who_draws_a_last_token_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch):
    whole, num_whole = LaneScheduling.decide, 0

    def counted(self: LaneScheduling, *args: Any) -> bool:
        nonlocal num_whole
        num_whole += 1
        return whole(self, *args)

    harness = Harness(overlap=True)
    for max_tokens in (3, 5, 8):
        harness.add(harness.request((1, 2), max_tokens))
    monkeypatch.setattr(LaneScheduling, "decide", counted)
    harness.run()
    assert num_whole == 2, "for the prompts, and when nobody is left in the batch"
