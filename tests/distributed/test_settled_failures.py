from __future__ import annotations

import pytest
import torch

from service.core.iteration import IterationPlan
from service.distributed import settled_failures
from service.distributed.plan_follower import RankUseless
from service.distributed.settled_failures import SettledFailures
from service.errors import ServerError
from tests.distributed.scene import Done, Scene, Scripted

EMPTY = IterationPlan(())


class FakeEvent:
    """Done at the third look; or at none."""

    never = False

    def __init__(self) -> None:
        self._looks = 0

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self._looks += 1
        return self._looks > 2 and not self.never


class NeverDone(FakeEvent):
    never = True


def failing(number: int, plan: IterationPlan) -> Done:
    if number == 2:
        raise MemoryError("none left")
    return Done()


def test_a_plan_that_fails_everywhere_alike_is_a_fault_of_that_plan(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    with Scene(SettledFailures(Scripted(failing)), SettledFailures(Scripted(failing))) as scene:
        scene.executor.launch(EMPTY).wait()
        with pytest.raises(MemoryError, match="none left"):
            scene.executor.launch(EMPTY)
        scene.executor.launch(EMPTY).wait()
    assert scene.losses == []


def test_a_rank_whose_device_is_left_waiting_is_the_end_of_all(monkeypatch: pytest.MonkeyPatch):
    """It has launched an exchange more than the other, which would take the next plan's for it."""
    monkeypatch.setattr(torch.cuda, "Event", NeverDone)
    monkeypatch.setattr(settled_failures, "SETTLES_WITHIN_S", 0.05)
    with Scene(SettledFailures(Scripted(failing)), Scripted(failing)) as scene:
        scene.executor.launch(EMPTY).wait()
        with pytest.raises(RankUseless, match="at a different place than on the other ranks: MemoryError: none left"):
            scene.executor.launch(EMPTY)
        with pytest.raises(ServerError, match="rank 0: an iteration failed at a different place"):
            scene.executor.launch(EMPTY)
    assert len(scene.losses) == 1
    with (
        pytest.raises(AssertionError, match="RankUseless"),
        Scene(Scripted(failing), SettledFailures(Scripted(failing))) as scene,
    ):
        scene.executor.launch(EMPTY).wait()
        with pytest.raises(MemoryError):
            scene.executor.launch(EMPTY)
    assert len(scene.losses) == 1 and scene.losses[0].startswith("rank 1 has ended")


@pytest.mark.gpu
@pytest.mark.parametrize(("within_s", "expected"), [(10.0, MemoryError), (0.01, RankUseless)])
def test_a_device_that_computes_is_waited_for(within_s: float, expected: type[Exception], monkeypatch):
    def fail(number: int, plan: IterationPlan) -> Done:
        torch.cuda._sleep(400_000_000)  # cycles: 0.2 s
        raise MemoryError

    monkeypatch.setattr(settled_failures, "SETTLES_WITHIN_S", within_s)
    with pytest.raises(expected):
        SettledFailures(Scripted(fail)).launch(EMPTY)
    torch.cuda.synchronize()
