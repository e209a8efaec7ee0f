"""Layer steps of a model in stages, as rank 0 answers for them: it computes some itself, others are other stages'."""

from __future__ import annotations

import time
from collections.abc import Sequence

from service.core.training import TrainingOutcome
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import Fact, RankStatuses
from service.errors import ServerError

_LOOK_EVERY_S = 0.0002


class StageShares:
    """ranks: the first ones of the other stages, each of which tells for its stage. None of theirs: there are no other
    stages.

    A share is done once it is on every stage, so that those who wait for the device know when it is theirs, and the
    next share is told no earlier (`TrainingTurns`). Its seconds are all stages' together, of which one computes at a
    time. What fails on one of them ends the training, and nothing else.
    """

    def __init__(self, ranks: Sequence[int], statuses: RankStatuses, loss: RankLoss) -> None:
        self._ranks = ranks
        self._statuses = statuses
        self._loss = loss
        self._seen = self._told()

    def completed(self, number: int, outcome: TrainingOutcome) -> TrainingOutcome:
        """outcome: rank 0's, of plan `number`. Returns that of all stages; waits for them. Raises where ranks are
        lost."""
        if not self._ranks:
            return outcome
        while any(self._statuses.get(rank, Fact.PLANS_DONE) < number for rank in self._ranks):
            self._loss.check()
            time.sleep(_LOOK_EVERY_S)
        before, self._seen = self._seen, self._told()
        nanoseconds, faults, without_memory = (now - then for now, then in zip(self._seen, before, strict=True))
        fault: Exception | None = outcome.fault
        if without_memory:
            fault = MemoryError("another stage had no memory for a layer step")
        elif faults:
            fault = ServerError("a training failed on another stage, whose log says why")
        return outcome._replace(seconds=outcome.seconds + nanoseconds / 1e9, fault=fault)

    def _told(self) -> tuple[int, int, int]:
        facts = Fact.TRAINING_NS, Fact.TRAINING_FAULTS, Fact.OUT_OF_MEMORY
        nanoseconds, faults, without_memory = (
            sum(self._statuses.get(rank, fact) for rank in self._ranks) for fact in facts
        )
        return nanoseconds, faults, without_memory
