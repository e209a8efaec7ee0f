from __future__ import annotations

import os
import threading

import pytest

from service.core.training import TrainingOutcome
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.stage_shares import StageShares
from service.errors import ServerError

OURS = TrainingOutcome(3, 4, 0.5, 6)


@pytest.fixture
def statuses() -> RankStatuses:
    memory = RankStatuses.make_memory(4)
    statuses = RankStatuses(memory, 4)
    os.close(memory)
    return statuses


def carry_out(statuses: RankStatuses, ranks: tuple[int, ...], number: int, fault: Exception | None = None) -> None:
    for rank in ranks:
        statuses.note_training(rank, 0.25, fault)
        statuses.set(rank, Fact.PLANS_DONE, number)


def test_a_share_is_done_once_it_is_on_every_stage_and_took_what_all_took(statuses: RankStatuses):
    """Two stages of two ranks: 0 and 1 are the last one, and of the others' rank 2 tells."""
    shares = StageShares([2], statuses, RankLoss(lambda reason: None))
    timer = threading.Timer(0.2, carry_out, (statuses, (2, 3), 7))
    timer.start()
    assert shares.completed(7, OURS) == OURS._replace(seconds=0.75)
    assert not timer.is_alive()
    timer.join()
    carry_out(statuses, (2, 3), 8)
    assert shares.completed(8, OURS).seconds == pytest.approx(0.75), "its own alone"


def test_what_fails_on_another_stage_ends_the_training(statuses: RankStatuses):
    """Told before what came of it here: a loss that is no number."""
    shares = StageShares([1, 2, 3], statuses, RankLoss(lambda reason: None))
    ours = OURS._replace(fault=ArithmeticError("the loss is not finite"))
    carry_out(statuses, (1, 2), 1)
    carry_out(statuses, (3,), 1, MemoryError("none left"))
    assert isinstance(shares.completed(1, ours).fault, MemoryError)
    carry_out(statuses, (1, 3), 2)
    carry_out(statuses, (2,), 2, ZeroDivisionError())
    assert isinstance(shares.completed(2, ours).fault, ServerError)
    carry_out(statuses, (1, 2, 3), 3)
    assert shares.completed(3, ours).fault is ours.fault
    assert shares.completed(3, OURS).fault is None


def test_nobody_waits_for_a_stage_that_is_lost_or_for_none(statuses: RankStatuses):
    loss = RankLoss(lambda reason: None)
    assert StageShares([], statuses, loss).completed(7, OURS) == OURS
    loss.declare("rank 1 has ended")
    with pytest.raises(ServerError, match="rank 1 has ended"):
        StageShares([1], statuses, loss).completed(7, OURS)
