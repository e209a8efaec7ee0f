from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import LockstepTokens
from service.core.iteration_plan import PENDING_TOKEN_ID
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler import lockstep, lockstep_run
from service.scheduler.lockstep_run import LockstepRun, RunningTogether
from tests.engine.harness import Harness
from tests.scheduler.test_lockstep import make_lockstep


def make_run(*prompt_lens: int, max_tokens: int = 20) -> tuple[LockstepRun, list[SequenceGroup]]:
    lockstep, groups = make_lockstep(*prompt_lens, max_tokens=max_tokens)
    return LockstepRun(RunningTogether(lockstep.members(), 0), 0), groups


def test_what_a_run_has_launched_and_drawn_is_its_members_once_it_is_closed():
    run, groups = make_run(3, 5)
    for number in (4, 5, 6):
        run.launch(number)
    assert run.take((10, 11), 1.0)
    assert run.take((20, 21), 2.0)
    assert [len(group.leader.token_ids) for group in groups] == [4, 6], "nothing was touched yet"
    run.close()
    run.close()
    assert groups[1].leader.token_ids == [1, 1, 1, 1, 1, 7, 11, 21, PENDING_TOKEN_ID]
    assert [(g.leader.num_computed_tokens, g.leader.last_iteration) for g in groups] == [(6, 6), (8, 6)]
    assert [(g.num_output_tokens, g.last_token_s) for g in groups] == [(2, 2.0)] * 2
    assert not run.take((30, 31), 3.0), "the third is applied by itself"


def test_a_run_of_which_nothing_was_drawn_leaves_pending_ids():
    run, (group,) = make_run(3)
    run.launch(9)
    run.close()
    assert group.leader.token_ids == [1, 1, 1, 7, PENDING_TOKEN_ID]
    assert (group.num_output_tokens, group.last_token_s) == (0, None)


def test_a_token_that_may_be_a_stop_and_a_last_token_close_the_run():
    run, _ = make_run(3, max_tokens=4)  # the first of four was drawn before
    for number in range(3):
        run.launch(number)
    assert run.take((10,), 1.0) and run.take((11,), 2.0)
    assert not run.take((12,), 3.0) and not run.is_open
    run, _ = make_run(3)
    run.launch(1)
    assert not run.take((-1,), 1.0), "a draw that failed"
    assert not run.is_open


def test_who_wants_more_than_ids_is_in_no_run():
    harness = Harness()
    harness.add(harness.request((1, 2), 12))
    for number in range(30):
        if number == 4:
            harness.add(harness.request((1, 2), 4, num_logprobs=0))
        harness.step()
        members = harness.scheduler.lockstep.members()
        assert RunningTogether(members, 0).is_possible == (len(members) < 2)
        assert harness.scheduler.lockstep.run is None or len(members) == 1
    assert SamplingParams(4).num_logprobs is None


def test_the_tokens_of_a_run_are_told_iteration_by_iteration():
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


def test_full_blocks_of_a_run_are_found_again():
    harness = Harness(num_blocks=64, max_num_seqs=1)
    harness.add(harness.request((1, 2, 3), 30))
    harness.run()
    said = tuple(harness.tokens["request-0", 0])
    harness.add(harness.request((1, 2, 3, *said)[:29], 2))
    harness.run()
    assert harness.finals["request-1"].stats.num_cached_tokens == 28


def play(seed: int, longest_run: int, *, block_size: int, overlap: bool) -> tuple[object, ...]:
    """All that can be seen of a random history, with runs of so many iterations at most. Without a prefix cache: a run
    offers its blocks later."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "LONGEST_RUN", longest_run)
        if not longest_run:
            patch.setattr(lockstep_run, "_wants_more_than_ids", lambda decode: True)
        harness = Harness(
            chance.randint(12, 60),
            block_size,
            max_num_seqs=6,
            max_num_batched_tokens=24,
            prefix_cache=NoPrefixCache(),
            overlap=overlap,
        )
        for _ in range(chance.randint(20, 80)):
            if chance.random() < 0.1:
                prompt = tuple(range(chance.randint(1, 12)))
                stops = frozenset(chance.sample(range(1000), 20)) if chance.random() < 0.5 else frozenset[int]()
                n = chance.choice((1, 1, 1, 1, 2))
                harness.add(harness.request(prompt, chance.randint(1, 40), n=n, stops=stops, seed=chance.randint(0, 9)))
            if harness.requests and chance.random() < 0.03:
                harness.engine.abort(chance.choice(list(harness.requests)))
            harness.step()
        harness.run()
    stats = {name: (final.outcome, final.stats.num_output_tokens) for name, final in harness.finals.items()}
    plans = [(plan.num_scheduled_tokens, [*map(tuple, plan.scheduled)]) for plan in harness.toy.plans]
    gaps = [sum(count for _, count in each.token_gaps) for each in harness.sink.iterations]
    return dict(harness.tokens), harness.reasons, stats, plans, gaps


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    longest_run=st.integers(1, 40),
    block_size=st.sampled_from([1, 4]),
    overlap=st.booleans(),
)
def test_with_runs_and_without_all_is_the_same(seed: int, longest_run: int, block_size: int, overlap: bool):
    with_runs = play(seed, longest_run, block_size=block_size, overlap=overlap)
    assert with_runs == play(seed, 0, block_size=block_size, overlap=overlap)
