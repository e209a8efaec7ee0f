from __future__ import annotations

import pytest

from service.engine.engine_probe import probe
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import Harness


def test_a_probe_draws_a_token_and_leaves_nothing_behind():
    harness = Harness(num_blocks=2)
    assert probe(harness.scheduler, harness.executor) is True
    assert harness.blocks.pool.num_used == 0
    assert harness.blocks.take_released_rows() == (1,), "its row is free again"
    assert harness.toy.plans[-1].scheduled[0].sequence_id < 0, "no request's"


def test_a_draw_that_fails_and_a_fault_of_the_executor_are_told_apart():
    unlucky = Harness(executor=FaultyExecutor(frozenset(), unlucky=frozenset({-1})))
    assert probe(unlucky.scheduler, unlucky.executor) is False
    failing = Harness(executor=FaultyExecutor(frozenset({1})))
    with pytest.raises(RuntimeError):
        probe(failing.scheduler, failing.executor)
    assert failing.blocks.pool.num_used == 0


def test_without_room_nothing_is_computed():
    harness = Harness(num_blocks=1)
    harness.blocks.allocate(0, 1, [])
    assert probe(harness.scheduler, harness.executor) is None
    assert not harness.toy.plans
