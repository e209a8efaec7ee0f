from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.core.iteration import IterationPlan, IterationResult
from service.core.sequence_group import SequenceGroup
from service.errors import ServerError
from service.kvcache.prefix_cache import ChainedPrefixCache
from service.prediction.preemption_cost import Recovery, RecoveryCosts
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_grammar import ToyGrammar, ToyMasker
from tests.engine.toy_model import ToyExecutor
from tests.examples import examples

STOPS = frozenset(range(0, 1000, 9))

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple)  # few ids, so that prefixes repeat
lengths = st.one_of(st.integers(0, 12), st.just(40))  # there are runs in the long ones
wishes = st.sampled_from(["", "", "", "logprobs", "prompt logprobs", "grammar", "cursed grammar"])
arrivals = st.tuples(
    st.just("add"), prompts, lengths, st.integers(1, 4), st.booleans(), st.sampled_from(["", "salt"]), wishes
)
BEAM_STOPS = frozenset({0, 9, 18})
MOST_CHOICES = 5
beam_arrivals = st.tuples(
    st.just("beams"),
    prompts,
    st.integers(1, 8),
    st.integers(2, MOST_CHOICES),
    st.booleans(),
    st.sampled_from([-0.5, 0.0, 1.0, 2.0]),
    st.sampled_from([False, True, "never"]),
    st.sampled_from(["", "salt"]),
)
operations = st.one_of(
    arrivals,
    beam_arrivals,
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("stop"), st.integers(0, 30), st.integers(0, 3)),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
)


class SometimesSwap:
    """Swaps a share of the preempted groups."""

    def __init__(self, share: float) -> None:
        self._chance = random.Random(1)
        self._share = share

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        return Recovery.SWAP if self._chance.random() < self._share else Recovery.RECOMPUTE


def apply_operation(harness: Harness, operation: tuple, touched: set[tuple[str, int]]) -> None:
    match operation:
        case ("add", prompt, max_tokens, n, with_stops, salt, wish):
            stops = STOPS if with_stops else frozenset()
            seed = len(harness.requests) % 3
            request = harness.request(
                prompt,
                max_tokens,
                n,
                seed,
                stops,
                salt=salt,
                priority=seed,
                client=f"client-{seed % 2}",
                num_logprobs=0 if wish == "logprobs" else None,
                num_prompt_logprobs=0 if wish == "prompt logprobs" or not max_tokens else None,
            )
            if wish.endswith("grammar"):
                grammar = ToyGrammar(1 + len(prompt) % 8, 1 + seed, is_cursed=wish == "cursed grammar")
                request = replace(request, grammar=grammar)
                harness.requests[request.request_id] = request
            harness.add(request)
            group = harness.scheduler.pool.get(f"request-{len(harness.requests) - 1}")
            if group is not None and len(harness.requests) % 4 == 0:
                group.runs_ahead = False
            harness.clock.advance(0.001)
        case ("beams", prompt, max_tokens, width, with_stops, length_penalty, early_stopping, salt):
            stops = BEAM_STOPS if with_stops else frozenset()
            n = 1 + len(harness.requests) % width
            harness.add(harness.beam_request(prompt, max_tokens, width, n, stops, length_penalty, early_stopping, salt))
            harness.clock.advance(0.001)
        case ("abort", index):
            request_id = f"request-{index}"
            harness.engine.requests.abort(request_id)
            harness.collect()
            touched |= {(request_id, choice) for choice in range(MOST_CHOICES)}
        case ("stop", index, choice):
            harness.engine.requests.stop_choice(f"request-{index}", choice)
            harness.collect()
            touched.add((f"request-{index}", choice))
        case ("step",):
            harness.step()


@settings(max_examples=examples(150), deadline=None)
@given(
    operations=st.lists(operations, max_size=60),
    num_blocks=st.integers(2, 24),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_num_seqs=st.integers(1, 8),
    extra_budget=st.one_of(st.integers(1, 20), st.just(4096)),
    watermark_blocks=st.integers(0, 2),
    policy=st.sampled_from(["fcfs", "priority", "fair", "shares"]),
    admission=st.sampled_from(["on-demand", "reserve", "forecast"]),
    num_host_blocks=st.sampled_from([0, 3, 30]),
    transfer_delay=st.integers(0, 3),
    swap_share=st.sampled_from([0.0, 0.5, 1.0]),
    max_preemptions=st.sampled_from([1, 2, 1_000_000]),
    blocks_per_entry=st.sampled_from([1, 2]),
    overlap=st.booleans(),
)
def test_every_request_gets_its_oracle_tokens_whatever_else_happens(
    operations,
    num_blocks,
    block_size,
    max_num_seqs,
    extra_budget,
    watermark_blocks,
    policy,
    admission,
    num_host_blocks,
    transfer_delay,
    swap_share,
    max_preemptions,
    blocks_per_entry,
    overlap,
):
    harness = Harness(
        num_blocks,
        block_size,
        max_num_seqs,
        max_num_seqs + extra_budget,
        watermark_blocks,
        prefix_cache=ChainedPrefixCache(block_size, blocks_per_entry),
        policy=policy,
        admission=admission,
        preemption=SometimesSwap(swap_share),
        num_host_blocks=num_host_blocks,
        transfer_delay=transfer_delay,
        max_preemptions=max_preemptions,
        overlap=overlap,
        masker=ToyMasker(VOCABULARY),
    )
    touched: set[tuple[str, int]] = set()
    for operation in operations:
        apply_operation(harness, operation, touched)
    accepted = [r for r in harness.requests if r in harness.finals or harness.scheduler.pool.get(r)]
    harness.run()

    assert set(harness.finals) == set(accepted), "every accepted request ends in one final event"
    for request_id in accepted:
        request, has_failed = harness.requests[request_id], harness.finals[request_id].outcome is Outcome.FAILED
        assert not has_failed or (request.grammar is not None and request.grammar.is_cursed)
        for choice in range(request.sampling.n):
            is_whole = (request_id, choice) not in touched and not has_failed
            harness.check_against_oracle(request_id, choice, complete=is_whole)
    harness.check_nothing_left()


def test_a_preempted_request_goes_on_with_the_same_tokens_and_is_counted():
    harness = Harness(num_blocks=6, block_size=2, max_num_batched_tokens=32)
    for seed in range(3):
        assert harness.add(harness.request((1, 2, 3), 8, seed=seed))
    harness.run()
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0
    assert sum(i.num_dropped for i in harness.sink.iterations) > 0
    assert sum(i.recomputed_tokens for i in harness.sink.iterations) > 0
    assert sum(i.prompt_tokens for i in harness.sink.iterations) == 9
    assert sum(i.generated_tokens for i in harness.sink.iterations) == 24


def test_choices_share_the_prompt_and_are_copied_on_write():
    harness = Harness(num_blocks=64, block_size=4)
    harness.add(harness.request((1, 2, 3, 4, 5, 6), 6, n=4))
    harness.step()
    assert harness.blocks.pool.num_used == 2, "four choices on the prompt's two blocks"
    harness.step()
    assert len(harness.toy.plans[-1].copies) == 3, "the last holder writes in place"
    assert harness.blocks.pool.num_used == 5
    harness.run()
    for choice in range(4):
        harness.check_against_oracle("request-0", choice)


@settings(max_examples=examples(75), deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=8),
    num_blocks=st.integers(8, 30),
    max_num_seqs=st.integers(3, 8),
    extra_budget=st.integers(1, 10),
)
def test_all_end_no_later_than_if_one_ran_after_the_other(requests, num_blocks, max_num_seqs, extra_budget):
    """First come, first served: the oldest request runs in every iteration, whatever is preempted for it."""
    budget = max_num_seqs + extra_budget
    harness = Harness(num_blocks, 2, max_num_seqs, budget)
    bound = 1
    for number, (prompt, max_tokens, n) in enumerate(requests):
        if harness.add(harness.request(prompt, max_tokens, n, seed=number)):
            harness.clock.advance(0.001)
            # Its chunks beside a full batch of decodes, its decodes, and an iteration to hear of its end.
            bound += -(-(len(prompt) + n * max_tokens) // extra_budget) + max_tokens + 1
    harness.run(max_steps=bound)


def test_blocks_that_are_on_their_way_come_back_also_when_nobody_is_left():
    harness = Harness(
        num_blocks=11,
        block_size=2,
        max_num_batched_tokens=32,
        preemption=SometimesSwap(1.0),
        num_host_blocks=12,
        transfer_delay=3,
    )
    for seed in range(4):
        harness.add(harness.request((1, 2, 3), 8, seed=seed))
    while not any(plan.transfers for plan in harness.toy.plans):
        harness.step()
    for request_id in harness.requests:
        harness.engine.requests.abort(request_id)
    harness.collect()
    assert harness.blocks.pool.num_used > 0, "copies under way read them"
    assert harness.engine.has_work
    harness.run(max_steps=5)
    assert harness.blocks.pool.num_used == harness.blocks.swap_space.num_used == 0


def test_a_failed_iteration_ends_the_requests_in_it_and_no_others():
    executor = FaultyExecutor(frozenset({2}))
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=8, executor=executor)
    for _ in range(3):
        harness.add(harness.request((1, 2), 4))
    harness.run()
    outcomes = [harness.finals[f"request-{i}"] for i in range(3)]
    assert [f.outcome for f in outcomes] == [Outcome.FAILED, Outcome.FAILED, Outcome.FINISHED]
    assert isinstance(outcomes[0].error, ServerError)
    harness.check_against_oracle("request-2")
    assert harness.blocks.pool.num_used == 0
    assert harness.engine.failed.num_in_a_row == 0


def test_what_a_failed_plan_was_to_release_is_released_by_the_next():
    executor = FaultyExecutor(frozenset(), failing_launches=frozenset({3}))
    harness = Harness(max_num_batched_tokens=16, executor=executor)
    harness.add(harness.request((1, 2), 2))
    harness.add(harness.request((1, 2), 8))
    harness.run()
    assert [harness.finals[f"request-{i}"].outcome for i in range(2)] == [Outcome.FINISHED, Outcome.FAILED]
    harness.add(harness.request((1, 2), 2))
    harness.run()
    assert set(executor.plans[2].released) == {1, 2}, "the rows of both"


faults = st.frozensets(st.integers(1, 30), max_size=3)


@settings(max_examples=examples(100), deadline=None)
@given(
    operations=st.lists(operations, max_size=40),
    num_blocks=st.integers(4, 24),
    policy=st.sampled_from(["fcfs", "priority", "fair", "shares"]),
    swap_share=st.sampled_from([0.0, 0.5, 1.0]),
    failing_launches=faults,
    failing_waits=faults,
    unlucky=st.frozensets(st.integers(0, 8), max_size=1),
    overlap=st.booleans(),
    transfer_delay=st.integers(0, 2),
)
def test_a_fault_reaches_only_the_requests_that_were_in_the_iteration_or_on_the_move(
    operations, num_blocks, policy, swap_share, failing_launches, failing_waits, unlucky, overlap, transfer_delay
):
    executor = FaultyExecutor(failing_waits, unlucky, failing_launches, num_blocks, transfer_delay)
    harness = Harness(
        num_blocks,
        4,
        executor=executor,
        policy=policy,
        overlap=overlap,
        preemption=SometimesSwap(swap_share),
        num_host_blocks=num_blocks,
        masker=ToyMasker(VOCABULARY),
    )
    executor.moving = harness.blocks.swap_space.swapping_sequence_ids
    touched: set[tuple[str, int]] = set()
    members: dict[str, set[int]] = {}
    for operation in operations:
        apply_operation(harness, operation, touched)
        for group in harness.scheduler.pool.groups():
            members[group.request.request_id] = {s.sequence_id for s in group.sequences}
    harness.run()
    for request_id, final in harness.finals.items():
        request = harness.requests[request_id]
        was_hit = bool(members[request_id] & (executor.hit | unlucky))
        is_cursed = request.grammar is not None and request.grammar.is_cursed
        assert (final.outcome is Outcome.FAILED) <= (was_hit or is_cursed), "nobody else fails"
        for choice in range(request.sampling.n):
            is_whole = final.outcome is Outcome.FINISHED and (request_id, choice) not in touched
            harness.check_against_oracle(request_id, choice, complete=is_whole)
    executor.failing_launches = executor.failing_waits = frozenset()
    harness.check_nothing_left()


def test_an_iteration_is_launched_while_another_runs():
    harness = Harness(overlap=True)
    harness.add(harness.request((1, 2), 4))
    for num_tokens in (0, 1, 2, 3):
        harness.step()
        assert len(harness.tokens["request-0", 0]) == num_tokens
    harness.step()
    assert len(harness.toy.plans) == 4, "a last token is known beforehand: nothing is computed in vain"
    assert harness.finals["request-0"].outcome is Outcome.FINISHED
    assert not harness.engine.has_work


def test_who_needs_every_id_on_the_host_waits_and_holds_nobody_back():
    harness = Harness(overlap=True)
    for _ in range(2):
        harness.add(harness.request((1, 2), 8))
    waiting = harness.scheduler.pool.get("request-0")
    assert waiting is not None
    waiting.runs_ahead = False
    for _ in range(8):
        harness.step()
    assert [len(harness.tokens[f"request-{i}", 0]) for i in range(2)] == [4, 7]
    harness.run()
    for i in range(2):
        harness.check_against_oracle(f"request-{i}")


def test_the_seat_of_one_whose_last_token_is_being_drawn_is_free():
    harness = Harness(max_num_seqs=1, overlap=True)
    harness.add(harness.request((1,), 2))
    harness.add(harness.request((2,), 2))
    harness.run()
    assert [[item.sequence_id for item in plan.scheduled] for plan in harness.toy.plans] == [[0], [0], [1], [1]]
    for i in range(2):
        harness.check_against_oracle(f"request-{i}")


def test_a_stop_is_seen_one_iteration_late():
    harness = Harness(overlap=True)
    harness.add(harness.request((1,), 100, stops=frozenset(range(0, 1000, 2))))
    while not harness.finals:
        harness.step()
    assert harness.blocks.pool.num_used > 0, "the iteration after the stop still runs"
    harness.run()
    assert harness.blocks.pool.num_used == 0
    assert len(harness.toy.plans) == len(harness.tokens["request-0", 0]) + 1
    harness.check_against_oracle("request-0")


def test_tokens_are_told_beside_the_blocks_that_held_them_when_they_were_counted():
    """Blocks are freed in between: to the host, or when a request ends."""
    harness = Harness(num_blocks=64, block_size=4)
    for length in (24, 5):
        harness.add(harness.request(tuple(range(length)), 3 if length == 24 else 30))
    snapshots = []
    while len(harness.finals) < 2:
        harness.step()
        snapshots.append(harness.engine.snapshot())
    assert all(each.kv_tokens <= 4 * each.kv_token_blocks for each in snapshots)
    assert any(each.kv_tokens > 4 * each.used_blocks for each in snapshots), "the longer one has ended since"
    assert harness.engine.snapshot().kv_token_blocks == 0


def test_the_snapshot_tells_what_is_held():
    harness = Harness(num_blocks=64, block_size=4)
    harness.add(harness.request(tuple(range(6)), 3, n=2))
    harness.step()
    snapshot = harness.engine.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.batch_size) == (1, 0, 1)
    assert (snapshot.used_blocks, snapshot.total_blocks) == (2, 64)
    harness.run()
    assert harness.engine.snapshot().used_blocks == 0
    assert harness.engine.snapshot().batch_size == 0


def test_a_snapshot_counts_the_requests_that_are_on_the_host():
    harness = Harness(
        num_blocks=11, block_size=2, max_num_batched_tokens=32, preemption=SometimesSwap(1.0), num_host_blocks=12
    )
    for seed in range(4):
        harness.add(harness.request((1, 2, 3), 8, seed=seed))
    seen = set()
    while harness.engine.has_work:
        harness.step()
        swapped = harness.engine.snapshot().num_swapped
        ids = [group.live[0].sequence_id for group in harness.scheduler.pool.waiting]
        assert swapped == sum(harness.blocks.swap_space.holds(sequence_id) for sequence_id in ids)
        seen.add(swapped)
    assert seen > {0}


def test_it_is_recorded_which_iterations_were_replayed():
    class Replaying:
        def __init__(self, toy: ToyExecutor) -> None:
            self.toy = toy

        def launch(self, plan: IterationPlan) -> Replaying:
            self.result = replace(self.toy.launch(plan).wait(), is_replayed=plan.num_sequences == 1)
            return self

        def is_done(self) -> bool:
            return True

        def wait(self) -> IterationResult:
            return self.result

    harness = Harness()
    harness.engine._executor = Replaying(harness.toy)
    harness.add(harness.request((1, 2), 6))
    harness.add(harness.request((1, 2), 3))
    harness.run()
    assert {i.batch_size: i.is_replayed for i in harness.sink.iterations} == {2: False, 1: True}
