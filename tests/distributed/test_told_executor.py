from __future__ import annotations

import threading
from random import Random

import pytest

from service.core.block_moves import FinishedTransfer, Transfer
from service.core.events import Outcome
from service.core.iteration import IterationPlan, IterationResult
from service.distributed.rank_status import Fact
from service.errors import ServerError
from tests.distributed.plans import Masks, is_same
from tests.distributed.random_traffic import add_random_request
from tests.distributed.scene import Done, Scene, Scripted
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_grammar import ToyMasker
from tests.engine.toy_model import ToyExecutor
from tests.examples import examples

EMPTY = IterationPlan(())


class AtOnce:
    """A toy model's part that computes when it is launched, as a CPU does, and keeps what it computed."""

    def __init__(self, num_blocks: int) -> None:
        self.toy = ToyExecutor(num_blocks, 4, VOCABULARY)
        self.plans: list[IterationPlan] = []
        self.results: list[IterationResult] = []

    def launch(self, plan: IterationPlan) -> Done:
        self.plans.append(plan)
        self.results.append(self.toy.execute(self.toy.expand(plan)))
        return Done(self.results[-1])


def play(seed: int) -> list[IterationPlan]:
    """Choices, beams, grammars, stops, aborts, swapping and recomputation: each token by the oracle of a request alone,
    and every result of rank 1 equal to rank 0's. Returns the plans as rank 1 read them."""
    chance, num_blocks = Random(seed), 24
    ranks = [AtOnce(num_blocks), AtOnce(num_blocks)]
    with Scene(*ranks) as scene:
        harness = Harness(
            num_blocks,
            executor=scene.executor,
            preemption=SometimesSwap(0.5),
            num_host_blocks=12,
            overlap=seed % 2 == 1,
            masker=ToyMasker(VOCABULARY),
        )
        for _ in range(40):
            request = add_random_request(harness, chance, seed)
            if chance.random() < 0.1:
                harness.engine.requests.abort(request.request_id)
        harness.run()
        harness.check_nothing_left()
        scene.wait_for(1, Fact.PLANS_DONE, len(ranks[0].plans))
    for request_id, final in harness.finals.items():
        harness.check_against_oracle(request_id, complete=final.outcome is Outcome.FINISHED)
    assert len(harness.finals) >= 30
    assert all(map(is_same, ranks[0].plans, ranks[1].plans))
    assert ranks[0].results == ranks[1].results
    assert scene.losses == []
    return ranks[1].plans


def test_ranks_that_are_told_the_same_compute_the_same_whatever_requests_come():
    plans = [plan for seed in range(examples(4)) for plan in play(seed)]
    assert any(plan.transfers for plan in plans)
    assert any(plan.masks is not None for plan in plans)


def test_the_next_message_is_there_while_the_device_computes_the_one_before():
    """ORCA, section 4.1: rank 1's device is blocked, and it has already been told what comes next."""
    free = threading.Event()
    other = Scripted(lambda number, plan: Done(done=free))
    with Scene(Scripted(), other) as scene:
        for number in range(1, 4):
            scene.executor.launch(EMPTY)
            scene.wait_for(1, Fact.MESSAGES, number)
        assert scene.statuses.get(1, Fact.PLANS_DONE) == 0
        assert len(other.plans) == 3
        free.set()
        scene.wait_for(1, Fact.PLANS_DONE, 3)


def test_adapters_that_nobody_has_are_told_once_before_the_next_plan():
    dropped, told = [(3, 1), ()], []
    with Scene(
        Scripted(),
        Scripted(lambda number, plan: told.append(number) or Done()),
        take_dropped=lambda: dropped.pop(0) if dropped else (),
        drop_adapters=told.append,
    ) as scene:
        for number in (1, 2):
            scene.executor.launch(EMPTY)
            scene.wait_for(1, Fact.PLANS_DONE, number)
    assert told == [(3, 1), 1, 2]


def test_nobody_waits_for_the_others_results():
    never = threading.Event()
    with Scene(Scripted(), Scripted(lambda number, plan: Done(done=never))) as scene:
        assert scene.executor.launch(EMPTY).wait() == IterationResult(())
    assert scene.losses == []


def test_a_transfer_has_finished_once_every_ranks_has():
    plan = IterationPlan((), transfers=(Transfer(7, True, (1,), (0,)),))
    finished = IterationResult((), (FinishedTransfer(7, 0.5),))
    release = threading.Event()

    def late(number: int, plan: IterationPlan) -> Done:
        return Done(finished, done=release) if number == 1 else Done()

    def at_once(number: int, plan: IterationPlan) -> Done:
        return Done(finished) if number == 1 else Done()

    with Scene(Scripted(at_once), Scripted(late)) as scene:
        assert scene.executor.launch(plan).wait().finished_transfers == ()
        assert scene.executor.launch(EMPTY).wait().finished_transfers == ()
        threading.Timer(0.2, release.set).start()
        awaiting = scene.executor.launch(IterationPlan((), awaits_transfer=True))
        assert awaiting.wait().finished_transfers == (FinishedTransfer(7, 0.5),)
        assert release.is_set()
        assert scene.executor.launch(EMPTY).wait().finished_transfers == ()


def test_nobody_waits_for_a_transfer_that_has_failed_on_another_rank():
    plan = IterationPlan((), transfers=(Transfer(7, True, (1,), (0,)),), awaits_transfer=True)
    here = Scripted(lambda number, plan: Done(IterationResult((), (FinishedTransfer(7, 0.5),))))
    with Scene(here, failing(1)) as scene, pytest.raises(ServerError, match="failed on rank 1, but not on rank 0"):
        scene.executor.launch(plan).wait()


def failing(*numbers: int, at_launch: bool = True) -> Scripted:
    def behave(number: int, plan: IterationPlan) -> Done:
        fault = ValueError(f"plan {number}") if number in numbers else None
        if fault is not None and at_launch:
            raise fault
        return Done(fault=fault)

    return Scripted(behave)


@pytest.mark.parametrize("at_launch", [True, False])
def test_a_plan_that_fails_on_all_ranks_is_a_fault_of_that_plan(at_launch: bool):
    with Scene(failing(2, at_launch=at_launch), failing(2)) as scene:
        scene.executor.launch(EMPTY).wait()
        with pytest.raises(ValueError, match="plan 2"):
            scene.executor.launch(EMPTY).wait()
        scene.executor.launch(EMPTY).wait()
        scene.wait_for(1, Fact.PLANS_DONE, 3)
    assert scene.losses == []


def test_a_plan_that_fails_on_rank_0_alone_is_the_end_of_all():
    with Scene(failing(2), failing()) as scene:
        scene.executor.launch(EMPTY).wait()
        with pytest.raises(ValueError, match="plan 2"):
            scene.executor.launch(EMPTY)
        with pytest.raises(ServerError, match="failed on rank 0, but not on rank 1"):
            scene.executor.launch(EMPTY)
    assert len(scene.losses) == 1


def test_a_plan_that_fails_on_another_rank_alone_is_the_end_of_all():
    with Scene(failing(), failing(2)) as scene:
        scene.executor.launch(EMPTY).wait()
        scene.executor.launch(EMPTY).wait()
        scene.wait_for(1, Fact.PLANS_DONE, 2)
        with pytest.raises(ServerError, match="failed on rank 1, but not on rank 0"):
            scene.executor.launch(EMPTY)
    assert len(scene.losses) == 1


class FailingMasks(Masks):
    def wait(self) -> memoryview:
        raise ValueError("no masks")


def waiting() -> Scripted:
    def behave(number: int, plan: IterationPlan) -> Done:
        if plan.masks is not None:
            plan.masks.wait()
        return Done()

    return Scripted(behave)


def test_masks_that_fail_fail_the_plan_on_every_rank_and_no_other():
    with Scene(waiting(), waiting()) as scene:
        with pytest.raises(ValueError, match="no masks"):
            scene.executor.launch(IterationPlan((), masks=FailingMasks((0,))))
        scene.executor.launch(EMPTY).wait()
        scene.wait_for(1, Fact.PLANS_DONE, 2)
        assert scene.statuses.get(1, Fact.PLANS_FAILED) == 1
    assert scene.losses == []


def test_masks_that_nobody_waits_for_are_no_hindrance():
    with Scene(Scripted(), Scripted()) as scene:
        for _ in range(3):
            scene.executor.launch(IterationPlan((), masks=FailingMasks((0,)))).wait()
        scene.wait_for(1, Fact.PLANS_DONE, 3)
    assert scene.losses == []
