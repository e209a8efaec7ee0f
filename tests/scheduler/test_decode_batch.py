from __future__ import annotations

import random
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.iteration import ScheduledDecodes
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence_group import SequenceGroup
from service.engine.outbox import BatchTokens
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler import decode_batch
from service.scheduler.decode_batch import END, LONGEST_RUN, NUM_NEW, DecodeBatch, DecodeMembers
from service.scheduler.history import History
from service.scheduler.preemption import AlwaysSwap
from tests.engine.harness import Harness
from tests.examples import examples
from tests.scheduler.lane_invariants import check_batch

BLOCK_SIZE = 4
PENDING = PENDING_TOKEN_ID


def make_batch(*prompt_lens: int, max_tokens: int = 20) -> tuple[DecodeBatch, list[SequenceGroup]]:
    """Groups whose prompts are computed and whose first tokens are drawn."""
    blocks = BlockManager(80, BLOCK_SIZE, NoPrefixCache())
    batch, groups = DecodeBatch(blocks, count(1), History()), []
    for number, length in enumerate(prompt_lens):
        group = SequenceGroup(Request(f"r{number}", (1,) * length, SamplingParams(max_tokens), 0.0), number)
        blocks.allocate(number, length, [])
        group.leader.token_ids.append(7)
        group.leader.num_computed_tokens = length
        batch.start(group)
        groups.append(group)
    batch.join(groups)
    return batch, groups


def advance(batch: DecodeBatch) -> tuple[DecodeMembers, ScheduledDecodes]:
    advanced = batch.advance(1, batch.shortage())
    assert advanced is not None
    return advanced


def test_a_block_is_asked_for_when_the_last_one_is_full():
    batch, groups = make_batch(3, 4)
    assert batch.shortage().tolist() == [1], "the first has room for its fourth token"
    _, decodes = advance(batch)
    assert decodes.num_computed_tokens.tolist() == [3, 4]
    assert [column.tolist() for column in decodes.grown] == [[1], [1], [batch._blocks.table(1).block_ids[1]]]
    assert batch.shortage().tolist() == [0]
    check_batch(batch, groups)


def test_a_plan_is_a_value_that_later_iterations_do_not_change():
    batch, _ = make_batch(3, 4)
    _, first = advance(batch)
    before = [column.copy() for column in (first.rows, first.seeds, first.num_computed_tokens, *first.grown)]
    for _ in range(9):
        advance(batch)
    after = (first.rows, first.seeds, first.num_computed_tokens, *first.grown)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_whose_last_token_is_being_drawn_is_in_the_batch_no_more():
    batch, groups = make_batch(2, 2, max_tokens=3)
    advance(batch)
    assert len(batch) == 2
    advance(batch)
    assert len(batch) == 0
    assert list(batch.unbatched.values()) == groups
    assert [group.leader.token_ids for group in groups] == [[1, 1, 7, PENDING, PENDING]] * 2
    assert batch.advance(3, batch.shortage()) is None
    check_batch(batch, groups)


def test_who_stops_is_scheduled_no_more():
    batch, groups = make_batch(2, 2)
    _, both = advance(batch)
    batch.stop(groups[0])
    assert len(batch) == 1
    _, alone = advance(batch)
    assert alone.sequence_ids.tolist() == [1]
    assert alone.version != both.version
    batch.stop(groups[1])
    assert len(batch) == 0
    assert batch.advance(3, batch.shortage()) is None


@given(
    prompt_lens=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    steps=st.lists(st.lists(st.integers(1, 9), min_size=5, max_size=5), max_size=6),
)
def test_a_decode_may_compute_several_tokens_an_iteration(prompt_lens: list[int], steps: list[list[int]]):
    """Room, lengths and block tables follow the numbers in the column of new tokens, whatever they are."""
    batch, groups = make_batch(*prompt_lens, max_tokens=100)
    lengths = np.array(prompt_lens)
    for num_new in steps:
        batch._columns[END] += num_new[: len(groups)] - batch._columns[NUM_NEW]
        batch._columns[NUM_NEW] = num_new[: len(groups)]
        _, decodes = advance(batch)
        assert (decodes.num_computed_tokens == lengths).all()
        lengths += decodes.num_new_tokens
        tables = [batch._blocks.table(group.arrival_order).block_ids for group in groups]
        assert [len(table) for table in tables] == [-(-length // BLOCK_SIZE) for length in lengths.tolist()]
        for place, index, block_id in zip(*(column.tolist() for column in decodes.grown), strict=True):
            assert tables[place][index] == block_id
    batch.dissolve(groups)
    assert [group.leader.num_computed_tokens for group in groups] == lengths.tolist()


def test_what_is_drawn_is_kept_until_somebody_looks_and_pending_when_a_group_leaves():
    batch, groups = make_batch(3, 5)
    first, second, third = (advance(batch)[0] for _ in range(3))
    for members, token_ids in ((first, (10, 11)), (second, (20, 21))):
        batch.finish()
        assert batch.take(members, token_ids, 1.0) == {}
    assert [len(group.leader.token_ids) for group in groups] == [4, 6], "nothing was touched yet"
    batch.write_tokens()
    assert groups[1].leader.token_ids[5:] == [7, 11, 21]
    fourth, _ = advance(batch)
    batch.finish()
    assert batch.take(third, (30, 31), 3.0) == {}
    batch.stop(groups[0])
    sequence = groups[0].leader
    assert sequence.token_ids[3:] == [7, 10, 20, 30, PENDING]
    assert (sequence.num_computed_tokens, groups[0].num_output_tokens, groups[0].last_token_s) == (7, 3, 3.0)
    batch.finish()
    assert batch.take(fourth, (40, 41), 4.0) == {0: groups[0]}, "the caller has to look at it"
    assert sequence.token_ids[3:] == [7, 10, 20, 30, PENDING]
    assert groups[1].leader.token_ids[5:] == [7, 11, 21, 31, 41]
    batch.dissolve(groups[1:])
    assert (groups[1].leader.num_computed_tokens, groups[1].num_output_tokens) == (9, 4)


def test_in_a_long_run_tokens_are_written_now_and_then():
    batch, (group,) = make_batch(3, max_tokens=100)
    for number in range(1, LONGEST_RUN + 1):
        members, _ = advance(batch)
        batch.finish()
        batch.take(members, (5,), 1.0)
        assert len(group.leader.token_ids) == (4 if number < LONGEST_RUN else 4 + LONGEST_RUN)


def test_an_iteration_keeps_the_members_that_it_had():
    batch, groups = make_batch(3, 5, 4)
    members, _ = advance(batch)
    batch.stop(groups[1])
    advance(batch)
    batch.finish()
    assert batch.take(members, (10, 11, 12), 1.0) == {1: groups[1]}
    assert [group.leader.token_ids[-1] for group in groups] == [10, PENDING, 12]


def test_who_watches_for_an_id_is_looked_at():
    batch, groups = make_batch(3, 5)
    members, _ = advance(batch)
    batch.finish()
    assert batch.take(members, (10, -1), 1.0) == {1: groups[1]}, "a draw that failed"


def test_tokens_are_told_iteration_by_iteration():
    harness = Harness(num_blocks=64)
    for seed in range(3):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    news = []
    while harness.engine.has_work:
        harness.engine.step()
        news += harness.engine.requests.events.take()
    rows = [each for each in news if isinstance(each, BatchTokens)]
    assert len(rows) > 5
    assert all(row.request_ids is rows[0].request_ids for row in rows)
    assert {len(row.token_ids) for row in rows} == {3}


@pytest.mark.parametrize("is_aborted", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_full_blocks_of_an_answer_are_found_again_once_it_has_ended(is_aborted, n):
    harness = Harness(num_blocks=64, max_num_seqs=4, block_size=4)
    harness.add(harness.request((1, 2, 3), 30, n=n, seed=5))
    for _ in range(29):
        harness.step()
    assert not len(harness.blocks._prefix_cache.known), "nobody has use for half an answer"
    if is_aborted:
        harness.engine.requests.abort("request-0")
    harness.run()
    for choice in range(n):
        said = tuple(harness.tokens["request-0", choice])
        prompt = (1, 2, 3, *said)[:29]
        harness.add(harness.request(prompt, 2))
        harness.run()
        assert harness.finals[f"request-{choice + 1}"].stats.num_cached_tokens == 28


def play(seed: int, *, num_blocks: int, block_size: int, overlap: bool, swap: bool) -> tuple[object, int]:
    """All plans of a random history, ignoring order within a plan; and how often the batch had members. There is no
    prefix cache, because the order decides which blocks are taken first, and so which prefixes are forgotten."""
    chance = random.Random(seed)
    harness = Harness(
        num_blocks,
        block_size,
        max_num_seqs=6,
        max_num_batched_tokens=6 + chance.randint(1, 16),
        prefix_cache=NoPrefixCache(),
        preemption=AlwaysSwap() if swap else None,
        num_host_blocks=num_blocks if swap else 0,
        transfer_delay=chance.randint(0, 2),
        overlap=overlap,
    )
    num_together = 0
    for _ in range(60):
        if chance.random() < 0.25:
            prompt = tuple(range(chance.randint(1, 12)))
            harness.add(harness.request(prompt, chance.randint(1, 14), n=chance.choice((1, 1, 1, 2))))
        harness.step()
        num_together += len(harness.scheduler.lanes.batch)
    harness.run()
    plans = [
        (sorted((i.sequence_id, len(i.token_ids), i.num_computed_tokens) for i in plan.scheduled), len(plan.transfers))
        for plan in harness.toy.plans
    ]
    return (plans, harness.tokens), num_together


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(8, 40),
    block_size=st.sampled_from([1, 2, 4]),
    overlap=st.booleans(),
    swap=st.booleans(),
)
def test_batched_or_one_by_one_the_decisions_are_the_same(
    seed: int, num_blocks: int, block_size: int, overlap: bool, swap: bool
):
    together, _ = play(seed, num_blocks=num_blocks, block_size=block_size, overlap=overlap, swap=swap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeBatch, "join", lambda self, groups: None)
        one_by_one, num_together = play(seed, num_blocks=num_blocks, block_size=block_size, overlap=overlap, swap=swap)
    assert num_together == 0
    assert together == one_by_one


def test_a_version_lasts_while_the_same_decodes_run():
    """The executor checks what it says about the previous plan (tests/engine/toy_model.py)."""
    harness = Harness(num_blocks=64, block_size=4)
    for seed in range(3):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    steady, versions = [], []
    for step in range(11):
        if step == 4:
            harness.add(harness.request((1, 2, 3), 4))
        harness.step()
        steady.append(harness.scheduler.is_steady)
        versions.append(harness.scheduler.lanes.batch._version)
    # The first iteration of a decode has its prompt; the second is the first that only decodes.
    assert steady[:8] == [False, False, True, True, False, False, True, False], "the fourth has ended after its last"
    assert versions[1:4] == [versions[1]] * 3


def test_most_decodes_are_in_the_batch():
    harness = Harness(num_blocks=64)
    for seed in range(4):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    harness.add(harness.request((1, 2, 3), 12, n=2))
    harness.step()
    assert len(harness.scheduler.lanes.batch) == 4
    assert len(harness.scheduler.lanes.batch.unbatched) == 1


def see(seed: int, *, block_size: int, overlap: bool) -> tuple[object, ...]:
    """Everything visible of a random history, ignoring order within a plan; without a prefix cache, as in `play`."""
    chance = random.Random(seed)
    harness = Harness(
        chance.randint(12, 60),
        block_size,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        prefix_cache=NoPrefixCache(),
        overlap=overlap,
    )
    for _ in range(chance.randint(20, 80)):
        if chance.random() < 0.2:
            prompt = tuple(range(chance.randint(1, 12)))
            stops = frozenset(chance.sample(range(1000), 20)) if chance.random() < 0.5 else frozenset[int]()
            n = chance.choice((1, 1, 1, 1, 2))
            num_logprobs = chance.choice((None, None, None, 0))
            request = harness.request(
                prompt, chance.randint(1, 40), n=n, stops=stops, seed=chance.randint(0, 9), num_logprobs=num_logprobs
            )
            harness.add(request)
        if harness.requests and chance.random() < 0.05:
            harness.engine.requests.abort(chance.choice(list(harness.requests)))
        harness.step()
    harness.run()
    stats = {name: (final.outcome, final.stats.num_output_tokens) for name, final in harness.finals.items()}
    plans = [
        sorted((item.sequence_id, len(item.token_ids), item.num_computed_tokens) for item in plan.scheduled)
        for plan in harness.toy.plans
    ]
    gaps = [sorted(each.token_gaps) for each in harness.sink.iterations]
    return dict(harness.tokens), harness.reasons, stats, plans, gaps


@settings(max_examples=examples(50), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.sampled_from([1, 4]),
    overlap=st.booleans(),
    longest_run=st.sampled_from([1, 3, LONGEST_RUN]),
)
def test_batched_or_one_by_one_all_that_can_be_seen_is_the_same(
    seed: int, block_size: int, overlap: bool, longest_run: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_batch, "LONGEST_RUN", longest_run)
        together = see(seed, block_size=block_size, overlap=overlap)
        patch.setattr(DecodeBatch, "join", lambda self, groups: None)
        one_by_one = see(seed, block_size=block_size, overlap=overlap)
    assert together == one_by_one


def make_group(number: int, client: str = "", num_logprobs: int | None = None) -> SequenceGroup:
    params = SamplingParams(9, num_logprobs=num_logprobs)
    return SequenceGroup(Request(f"r{number}", (1,), params, 0.0, client=client), number)


def test_a_copy_has_more_or_fewer_and_the_first_keeps_its_own():
    groups = [make_group(0, "a"), make_group(1, "b", num_logprobs=0), make_group(2, "a")]
    two = DecodeMembers(History()).with_more(groups[:2], 5)
    three = two.with_more(groups[2:], 7)
    three.leave(6)
    three.leave(99)
    left = three.remaining()
    assert (two.numbers, three.numbers, left.numbers) == ([5, 6], [5, 6, 7], [5, 7])
    assert left.groups == [groups[0], groups[2]]
    assert left.request_ids == ["r0", "r2"]
    assert (three.num_by_client, left.num_by_client) == ({"a": 2, "b": 1}, {"a": 2})
    assert (three.detailed, left.detailed) == ([6], [])
    assert (three.left, left.left, two.left) == ({1: groups[1]}, {}, {})
    assert [left.place_of(number) for number in (5, 6, 7)] == [0, None, 1]


def test_ids_are_written_to_those_who_have_not_left():
    groups = [make_group(0), make_group(1)]
    members = DecodeMembers(History()).with_more(groups, 0)
    assert [members.keep((10, 20)), members.keep((11, 21))] == [1, 2]
    assert [group.leader.token_ids for group in groups] == [[1], [1]]
    members.write_kept()
    members.leave(0)
    members.write((12, 22))
    assert [group.leader.token_ids for group in groups] == [[1, 10, 11], [1, 20, 21, 22]]


def test_the_history_knows_of_all_tokens_once_they_are_written_but_of_none_that_was_dropped():
    batch, groups = make_batch(2, 2)
    client, history = groups[0].request.client, batch._history
    members, _ = advance(batch)
    advance(batch)
    of_one = history.served(client)
    batch.take(members, (7, 7), 0.0)
    assert history.served(client) == of_one, "a steady iteration touches no counter"
    batch.write_tokens()
    of_one = history.served(client) // 2
    assert of_one > 0
    batch.stop(groups[0])
    groups[0].live.clear()  # it has ended
    batch.take(members, (7, 7), 0.0)
    assert history.served(client) == 3 * of_one
