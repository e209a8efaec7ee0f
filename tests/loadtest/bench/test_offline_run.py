from __future__ import annotations

import pytest

from loadtest.bench.offline_run import OfflineRun, greedy_requests, run_at_once
from service.core.iteration import IterationPlan
from service.errors import ServerError
from tests.engine.harness import Harness


class Counting:
    """A clock that gains a second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_every_token_of_every_request_is_counted():
    engine = Harness(max_num_batched_tokens=64).engine
    run = run_at_once(engine, greedy_requests([(5, 4), (3, 1), (9, 7)], 1000, seed=0), Counting())
    assert sum(count for _, count in run.ticks) == 4 + 1 + 7
    assert run.ticks[0][1] == 3, "all prompts fit one iteration"
    assert set(run.first_s) == {"bench-0-0", "bench-0-1", "bench-0-2"}
    assert run.first_s["bench-0-1"] == run.last_s["bench-0-1"] == run.ticks[0][0]
    assert run.last_s["bench-0-2"] == run.ticks[-1][0]
    assert run.duration_s == run.ticks[-1][0] - run.started_s
    assert not engine.has_work


def test_steps_of_a_full_batch_only():
    run = OfflineRun(0.0, [(1.0, 1), (2.0, 2), (4.0, 2), (7.0, 2), (11.0, 1), (16.0, 2)])
    assert run.steps_of(2) == [2.0, 3.0]
    assert run.steps_of(3) == []


def test_requests_are_reproducible_and_differ():
    first, again, other = (greedy_requests([(50, 2)] * 2, 300, seed) for seed in (1, 1, 2))
    assert first == again
    assert first[0].prompt_token_ids != first[1].prompt_token_ids != other[0].prompt_token_ids
    assert all(0 <= token < 300 for request in first for token in request.prompt_token_ids)
    assert first[0].sampling.is_greedy


def test_a_failed_request_ends_the_benchmark():
    class Broken:
        def launch(self, plan: IterationPlan):
            raise RuntimeError("no device")

    engine = Harness(executor=Broken()).engine
    with pytest.raises(ServerError):
        run_at_once(engine, greedy_requests([(5, 4)], 1000, seed=0))
