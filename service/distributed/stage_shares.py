"""The outcome of layer steps of a model in stages: rank 0 combines its own with those of the other stages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from service.core.training import TrainingOutcome
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import Fact, RankStatuses
from service.errors import ServerError

_LOOK_EVERY_S = 0.0002


class StageShares:
    """ranks: the first rank of each other stage, which reports for that stage; empty without other stages.

    A share is done when it is done on every stage. So callers know when the devices are free, and the next share is
    sent no earlier (`TrainingTurns`). Its seconds are the sum over stages, of which one computes at a time. A fault on
    any stage ends the training, and nothing else.
    """

    def __init__(self, ranks: Sequence[int], statuses: RankStatuses, loss: RankLoss) -> None:
        self._ranks = ranks
        self._statuses = statuses
        self._loss = loss
        self._seen = self._told()

    def completed(self, number: int, outcome: TrainingOutcome) -> TrainingOutcome:
        """The outcome of all stages for plan `number`; waits for them.

        outcome: rank 0's. Raises if ranks are lost.
        """
        if not self._ranks:
            return outcome
        while any(self._statuses.get(rank, Fact.PLANS_DONE) < number for rank in self._ranks):
            self._loss.check()
            time.sleep(_LOOK_EVERY_S)
        before, self._seen = self._seen, self._told()
        nanoseconds, faults, without_memory = (now - then for now, then in zip(self._seen, before, strict=True))
        fault: Exception | None = outcome.fault
        if without_memory:
            fault = MemoryError("another stage ran out of memory in a layer step")
        elif faults:
            fault = ServerError("fine-tuning failed on another stage; its log has the reason")
        return outcome._replace(seconds=outcome.seconds + nanoseconds / 1e9, fault=fault)

    def _told(self) -> tuple[int, int, int]:
        facts = Fact.TRAINING_NS, Fact.TRAINING_FAULTS, Fact.OUT_OF_MEMORY
        nanoseconds, faults, without_memory = (
            sum(self._statuses.get(rank, fact) for rank in self._ranks) for fact in facts
        )
        return nanoseconds, faults, without_memory
