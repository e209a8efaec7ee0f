"""Trainings of a model that ranks divide.

Rank 0 prepares a training and sends it to the other ranks, as adapters are sent (adapter_lines.py) but with negative
ids. Each rank then computes its part of the training's layer steps, which arrive as shares in plans. With stages, a
share of 0 layer steps fetches from the other stages what rank 0's training state lacks.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.core.iteration import IterationPlan, IterationResult
from service.core.training import Training, TrainingShare
from service.distributed.adapter_lines import AdapterSharing
from service.distributed.plan_follower import RankUseless
from service.distributed.rank_task import HoldsAdapters
from service.engine.ports import Executor, PendingIteration, TrainingExecutor
from service.errors import InvalidRequest
from service.finetune.shared_training import TrainingTask, write_training

logger = logging.getLogger("headrace")


class SharedTrainings:
    """Rank 0's side."""

    def __init__(self, lines: AdapterSharing) -> None:
        self._lines = lines

    def share(self, training: Training, task: TrainingTask) -> None:
        """Have every rank prepare the training. They keep it as long as rank 0 does. Any thread. Raises ServerError if
        a rank cannot take it."""
        # Dropped when rank 0's object is gone, also if a rank could not take it.
        weakref.finalize(training, self._lines.drop, -task.training_id).atexit = False
        self._lines.share(-task.training_id, partial(write_training, task=task))


class StagedTrainings:
    """Rank 0's TrainingExecutor of a model in stages. local: for its own part. executor: carries out plans on all
    ranks."""

    def __init__(self, local: TrainingExecutor, executor: Executor) -> None:
        self._local = local
        self._executor = executor

    def add_training(self, training: Training) -> int:
        return self._local.add_training(training)

    def remove_training(self, training_id: int) -> None:
        self._local.remove_training(training_id)

    def training_state(self, training_id: int) -> object:
        """Only while no plan is under way."""
        outcome = self._executor.launch(IterationPlan((), training=TrainingShare(training_id, 0))).wait().training
        if outcome is not None and outcome.fault is not None:
            raise outcome.fault
        return self._local.training_state(training_id)


Note = Callable[[float, Exception | None], None]
"""(seconds, fault): note a plan's layer steps."""


class RankTrainings:
    """Another rank's side: a HoldsAdapters, and an Executor that wraps the rank's own.

    read: makes a training from a file. note: told of layer steps. is_stage: this rank is a whole stage, so within a
    layer step no other rank waits for it.

    Invalid training data is refused on every rank alike, before any exchange, and ends the training. Any other fault is
    this rank's own. If the rank is a whole stage, such a fault ends the training; otherwise the stage's other ranks
    would wait for this one, so it is raised as RankUseless and ends the rank.
    """

    def __init__(
        self,
        adapters: HoldsAdapters,
        executor: Executor,
        trainings: TrainingExecutor,
        read: Callable[[Path], Training],
        note: Note = lambda seconds, fault: None,
        *,
        is_stage: bool = False,
    ) -> None:
        self._note = note
        self._is_stage = is_stage
        self._adapters = adapters
        self._executor = executor
        self._trainings = trainings
        self._read = read
        self._lock = threading.Lock()
        self._waiting: dict[int, Training] = {}  # until their first share

    def take(self, adapter_id: int, file: Path) -> None:
        if adapter_id >= 0:
            self._adapters.take(adapter_id, file)
            return
        training = self._read(file)
        with self._lock:
            self._waiting[-adapter_id] = training

    def drop(self, adapter_id: int) -> None:
        if adapter_id >= 0:
            self._adapters.drop(adapter_id)
            return
        with self._lock:
            self._waiting.pop(-adapter_id, None)
        self._trainings.remove_training(-adapter_id)

    @property
    def num_taken(self) -> int:
        return self._adapters.num_taken

    def launch(self, plan: IterationPlan) -> PendingIteration:
        if plan.training is None:
            return self._executor.launch(plan)
        with self._lock:
            training = self._waiting.pop(plan.training.training_id, None)
        if training is not None:
            self._trainings.add_training(training)
        return _Share(self._executor.launch(plan), self._note, is_stage=self._is_stage)


class _Share:
    """The PendingIteration of a plan with layer steps."""

    def __init__(self, pending: PendingIteration, note: Note, *, is_stage: bool) -> None:
        self._pending = pending
        self._note = note
        self._is_stage = is_stage

    def is_done(self) -> bool:
        return self._pending.is_done()

    def wait(self) -> IterationResult:
        result = self._pending.wait()
        outcome = result.training
        if outcome is None:
            return result
        fault = outcome.fault
        if isinstance(fault, InvalidRequest):
            logger.warning("fine-tuning was rejected: %s", fault)
            fault = None  # rank 0 refuses it, too
        elif fault is not None and self._is_stage:
            logger.error("fine-tuning failed on this rank", exc_info=fault)
        elif fault is not None:
            raise RankUseless(f"fine-tuning failed on this rank: {type(fault).__name__}: {fault}") from fault
        self._note(outcome.seconds, fault)
        return result
