from __future__ import annotations

import threading

import pytest

from service.distributed.rank_loss import RankLoss
from service.errors import ServerError


def test_the_first_reason_counts_and_is_told_once_whoever_finds_out():
    told: list[str] = []
    loss = RankLoss(told.append)
    loss.check()
    threads = [threading.Thread(target=loss.declare, args=(f"reason {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [loss.reason]
    with pytest.raises(ServerError, match="reason"):
        loss.check()
