import collections
import dataclasses

import numpy as np
import pytest

from loadtest.prompts import BodyOptions, prompt_token_ids
from loadtest.workload import WORKLOADS, draw, named


@pytest.mark.parametrize("name", [*WORKLOADS, "decode-4", "fixed-5x6"])
def test_every_workload_draws_and_reproduces_and_names_its_source(name: str) -> None:
    workload = named(name)
    assert workload.name == name
    requests = draw(workload, 50, seed=7)
    assert requests == draw(workload, 50, seed=7)
    assert len(requests) == 50
    assert all(request.prompt_len >= 1 and request.output_len >= 1 for request in requests)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_a_source(name: str) -> None:
    assert WORKLOADS[name].__doc__


def test_another_seed_draws_other_lengths() -> None:
    assert draw(named("orca"), 50, seed=1) != [
        dataclasses.replace(request, prompt_seed=1) for request in draw(named("orca"), 50, seed=2)
    ]


def test_a_longer_draw_of_uniform_lengths_starts_with_the_shorter() -> None:
    assert draw(named("orca"), 100, seed=0)[:30] == draw(named("orca"), 30, seed=0)


def test_orca_lengths() -> None:
    requests = draw(named("orca"), 4000, seed=0)
    assert {min(r.prompt_len for r in requests), max(r.prompt_len for r in requests)} == {32, 512}
    assert np.mean([r.output_len for r in requests]) == pytest.approx(64.5, rel=0.03)


def test_conversations_have_consecutive_turns_and_pauses_only_between_them() -> None:
    requests = draw(named("multi-turn"), 200, seed=0)
    turns = collections.defaultdict(list)
    for request in requests:
        turns[request.conversation_id].append(request.turn)
        assert (request.think_time_s > 0) == (request.turn > 0)
    assert all(numbers == list(range(len(numbers))) for numbers in turns.values())
    assert max(len(numbers) for numbers in turns.values()) > 2


def test_shared_prefixes_use_all_groups() -> None:
    requests = draw(named("shared-prefix"), 300, seed=0)
    assert {request.prefix_group for request in requests} == set(range(8))
    assert {request.prefix_len for request in requests} == {512}


def test_priorities_keep_their_shares() -> None:
    counts = collections.Counter(request.priority for request in draw(named("mixed-priorities"), 5000, seed=0))
    assert counts[10] / 5000 == pytest.approx(0.1, abs=0.02)
    assert counts[-10] / 5000 == pytest.approx(0.3, abs=0.03)


def test_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="'nothing'"):
        named("nothing")


def test_another_prompt_seed_changes_the_prompts_alone() -> None:
    options = BodyOptions("m")
    one, two = draw(named("orca"), 5, seed=0), draw(named("orca"), 5, seed=0, prompt_seed=7)
    assert [(r.prompt_len, r.output_len) for r in one] == [(r.prompt_len, r.output_len) for r in two]
    for a, b in zip(one, two, strict=True):
        assert prompt_token_ids(a, options)[:8] != prompt_token_ids(b, options)[:8]
