import dataclasses

import pytest

from loadtest.baselines.engine_system import (
    EnginePolicies,
    EngineSystem,
    constant_limit,
    exact_limit,
    on_demand,
    paged,
    power_of_two_limit,
    reserve,
)
from loadtest.offline.figures_of_merit import mean_batch_size, memory_shares, num_preemptions
from loadtest.offline.replay import replay
from service.core.iteration import IterationPlan
from service.engine.ports import Executor, PendingIteration
from tests.loadtest.baselines.pools import pool, request


def test_limits() -> None:
    assert [power_of_two_limit(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert exact_limit(5) == 5
    assert constant_limit(100)(5) == 100


@pytest.mark.parametrize("limit", [exact_limit, constant_limit(40)])
def test_answers_are_as_long_as_planned_whatever_the_limit(limit) -> None:
    outcome = replay(paged(pool(), limit), [request(i, output=2 + i) for i in range(5)])
    assert [c.num_output_tokens for c in outcome.completions] == [2, 3, 4, 5, 6]


class PlansKept:
    """An executor that keeps its plans."""

    def __init__(self, executor: Executor) -> None:
        self.plans: list[IterationPlan] = []
        self._executor = executor

    def launch(self, plan: IterationPlan) -> PendingIteration:
        self.plans.append(plan)
        return self._executor.launch(plan)


def test_systems_that_share_an_executor_tell_their_decodes_apart() -> None:
    """A GPU advances the decodes that it has by their version alone."""
    shared, versions = pool(), list[set[int]]()
    for _ in range(2):
        kept = PlansKept(shared.executor)
        replay(paged(dataclasses.replace(shared, executor=kept), exact_limit), [request(i, output=8) for i in range(3)])
        versions.append({plan.decodes.version for plan in kept.plans if len(plan.decodes)})
    first, second = versions
    assert first and second and not first & second


def test_reserving_the_maximum_runs_fewer_and_holds_what_it_does_not_fill() -> None:
    requests = [request(i, prompt=4, output=8) for i in range(12)]
    limit = constant_limit(24)
    ours = replay(paged(pool(), limit), requests)
    theirs = replay(reserve(pool(), limit), requests)
    assert mean_batch_size(theirs) == 2, "64 tokens hold two requests of 4 + 24 in blocks of 4"
    assert mean_batch_size(ours) > 3
    assert memory_shares(theirs).token_state < 0.5 < memory_shares(ours).token_state
    assert num_preemptions(theirs) == 0


def test_n_answers_share_their_prompt() -> None:
    policies = EnginePolicies(on_demand(pool()), temperature=1.0)
    system = EngineSystem("shared", pool(), policies)
    outcome = replay(system, [request(0, prompt=16, output=3, n=4)])
    assert outcome.completions[0].num_output_tokens == 12
    assert memory_shares(outcome).saved > 0.4


def test_answers_that_wait_for_their_prompt_to_be_computed_again_point_to_no_block() -> None:
    """Two answers are preempted, and only the first one has a table until their prompt is there, in two iterations."""
    scarce = pool(num_blocks=24)
    system = EngineSystem("shared", scarce, EnginePolicies(on_demand(scarce), temperature=1.0))
    outcome = replay(system, [request(i, prompt=40, output=8, n=2) for i in range(6)])
    assert num_preemptions(outcome) > 0
    assert len(outcome.completions) == 6


def test_seats_can_be_fewer_than_the_executors() -> None:
    system = EngineSystem("few", pool(), EnginePolicies(on_demand(pool()), max_num_seqs=2))
    outcome = replay(system, [request(i) for i in range(6)])
    assert max(i.batch_size for i in outcome.iterations) == 2


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="request 3 of 60 \\+ 9 tokens never fits"):
        paged(pool()).submit(request(3, prompt=60, output=9))


def test_the_executor_is_left_without_sequences() -> None:
    shared = pool()
    for _ in range(2):
        outcome = replay(paged(shared), [request(i) for i in range(3)])
        assert len(outcome.completions) == 3
