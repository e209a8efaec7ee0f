from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import LockstepTokens
from service.core.iteration_plan import PENDING_TOKEN_ID
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.lockstep import LONGEST_RUN, Lockstep
from tests.engine.harness import Harness
from tests.scheduler.test_lockstep import advance, make_lockstep

PENDING = PENDING_TOKEN_ID


def test_what_is_drawn_is_written_once_it_is_settled_and_the_rest_when_a_member_leaves():
    lockstep, groups = make_lockstep(3, 5)
    first, second, third = (advance(lockstep).in_lockstep for _ in range(3))
    for iteration, token_ids in ((first, (10, 11, 99)), (second, (20, 21))):
        lockstep.finish()
        assert lockstep.take(iteration, token_ids, 1.0) == {}, "another's draw follows"
    assert [len(group.leader.token_ids) for group in groups] == [4, 6], "nothing was touched yet"
    lockstep.settle()
    assert groups[1].leader.token_ids[5:] == [7, 11, 21, PENDING]
    fourth = advance(lockstep).in_lockstep
    lockstep.finish()
    lockstep.take(third, (30, 31), 3.0)
    assert groups[1].leader.token_ids[5:] == [7, 11, 21, 31], "the fourth is kept apart"
    lockstep.settle()
    assert groups[1].leader.token_ids[5:] == [7, 11, 21, 31, PENDING]
    lockstep.finish()
    lockstep.take(fourth, (40, 41), 4.0)
    assert groups[0].leader.token_ids[3:] == [7, 10, 20, 30, 40]
    assert [(g.leader.num_computed_tokens, g.num_output_tokens, g.last_token_s) for g in groups] == [
        (3, 0, None),
        (5, 0, None),
    ]
    lockstep.dissolve(groups)
    assert [(g.leader.num_computed_tokens, g.num_output_tokens, g.last_token_s) for g in groups] == [
        (7, 4, 4.0),
        (9, 4, 4.0),
    ]


def test_a_long_run_is_settled_now_and_then():
    lockstep, (group,) = make_lockstep(3, max_tokens=100)
    for number in range(1, LONGEST_RUN + 1):
        running = advance(lockstep).in_lockstep
        lockstep.finish()
        lockstep.take(running, (5,), 1.0)
        assert len(group.leader.token_ids) == (4 if number < LONGEST_RUN else 4 + LONGEST_RUN)


def test_who_leaves_while_an_iteration_runs_is_told_of_by_itself():
    lockstep, groups = make_lockstep(3, 5, 4)
    running = advance(lockstep).in_lockstep
    decodes = list(lockstep.members.decodes)
    lockstep.stop(groups[1])
    lockstep.finish()
    assert lockstep.take(running, (10, 11, 12), 1.0) == {1: decodes[1]}
    assert [group.leader.token_ids[-1] for group in groups] == [10, PENDING, 12]
    assert lockstep.members.decodes == [decodes[0], decodes[2]]
    assert [lockstep.members.place_of(decodes[i]) for i in (0, 2)] == [0, 1]
    assert len(running.members) == 3, "an iteration keeps those that it had"


def test_who_watches_for_an_id_is_looked_at():
    lockstep, _ = make_lockstep(3, 5)
    running = advance(lockstep).in_lockstep
    lockstep.finish()
    assert list(lockstep.take(running, (10, -1), 1.0)) == [1], "a draw that failed"


def test_tokens_are_told_iteration_by_iteration():
    harness = Harness(num_blocks=64)
    for seed in range(3):
        harness.add(harness.request((1, 2, 3), 12, seed=seed))
    news = []
    while harness.engine.has_work:
        harness.engine.step()
        news += harness.engine.take_events()
    rows = [each for each in news if isinstance(each, LockstepTokens)]
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
    assert not len(harness.blocks._prefix_cache), "nobody has use for half an answer"
    if is_aborted:
        harness.engine.abort("request-0")
    harness.run()
    for choice in range(n):
        said = tuple(harness.tokens["request-0", choice])
        prompt = (1, 2, 3, *said)[:29]
        harness.add(harness.request(prompt, 2))
        harness.run()
        assert harness.finals[f"request-{choice + 1}"].stats.num_cached_tokens == 28


def play(seed: int, *, block_size: int, overlap: bool) -> tuple[object, ...]:
    """All that can be seen of a random history, whatever the order in its plans. Without a prefix cache, as in `play`
    of test_lockstep.py."""
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
            harness.engine.abort(chance.choice(list(harness.requests)))
        harness.step()
    harness.run()
    stats = {name: (final.outcome, final.stats.num_output_tokens) for name, final in harness.finals.items()}
    plans = [
        sorted((item.sequence_id, len(item.token_ids), item.num_computed_tokens) for item in plan.scheduled)
        for plan in harness.toy.plans
    ]
    gaps = [sorted(each.token_gaps) for each in harness.sink.iterations]
    return dict(harness.tokens), harness.reasons, stats, plans, gaps


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=st.sampled_from([1, 4]), overlap=st.booleans())
def test_in_lockstep_or_apart_all_that_can_be_seen_is_the_same(seed: int, block_size: int, overlap: bool):
    together = play(seed, block_size=block_size, overlap=overlap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lockstep, "join", lambda self, group, sequence: None)
        apart = play(seed, block_size=block_size, overlap=overlap)
    assert together == apart
