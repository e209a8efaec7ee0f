from __future__ import annotations

import pytest

from service.core.iteration import IterationPlan
from service.distributed.rank_status import Fact
from service.distributed.told_captures import Capture
from service.errors import ServerError
from service.runner.graph_sizes import GraphSize
from tests.distributed.scene import Done, Scene, Scripted

EMPTY = IterationPlan(())
SIZES = [GraphSize(64, 64), GraphSize(512, 32)]


@pytest.mark.parametrize(
    "capture", [Capture(SIZES, False, True), Capture(SIZES[:1], True, False), Capture([], True, True)]
)
def test_a_message_gives_back_what_it_was_given(capture):
    assert Capture.from_bytes(capture.to_bytes()) == capture
    with pytest.raises(ValueError):
        Capture.from_bytes(capture.to_bytes()[:-8])


def test_each_rank_captures_between_the_same_two_plans():
    """While the plan before may still run."""
    happened = {0: [], 1: []}

    def rank(number):
        def behave(plan_number, plan):
            happened[number].append(plan_number)
            return Done()

        return Scripted(behave)

    with Scene(rank(0), rank(1), capture=happened[1].append) as scene:
        for place in range(3):
            pending = scene.executor.launch(EMPTY)
            with scene.captures(SIZES[: place + 1], adapters=place == 1, asked=place == 2):
                happened[0].append(Capture(SIZES[: place + 1], place == 1, place == 2))
            pending.wait()
        scene.executor.launch(EMPTY).wait()
        scene.wait_for(1, Fact.PLANS_DONE, 4)
    assert happened[0] == happened[1]
    assert [each for each in happened[0] if isinstance(each, int)] == [1, 2, 3, 4]


def test_what_cannot_be_captured_on_rank_0_ends_all():
    with Scene(Scripted(), Scripted()) as scene:
        with pytest.raises(RuntimeError), scene.captures(SIZES, adapters=False, asked=False):
            raise RuntimeError("no memory")
        assert scene.losses == ["rank 0 could not capture a CUDA graph: RuntimeError: no memory"]
        with pytest.raises(ServerError), scene.captures(SIZES, adapters=False, asked=False):
            raise AssertionError("nothing is captured any more")
