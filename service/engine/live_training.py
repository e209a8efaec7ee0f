"""The active training, if any, from its start until its listener is told of its end, which happens exactly once."""

from __future__ import annotations

import logging
from typing import NamedTuple

from service.core.stats import TrainingStats
from service.core.training import Training, TrainingInterrupted, TrainingListener, TrainingOutcome
from service.engine.ports import StatsSink, TrainingExecutor
from service.errors import InvalidRequest
from service.scheduler.training_turns import TrainingTurns

logger = logging.getLogger(__name__)


class LiveTraining:
    """At most one training. Whatever goes wrong with it ends it and nothing else. Engine thread only.

    executor: None if no trainings are accepted.
    """

    def __init__(self, turns: TrainingTurns, executor: TrainingExecutor | None, stats_sink: StatsSink) -> None:
        self._turns = turns
        self._executor = executor
        self._stats_sink = stats_sink
        self._live: _Live | None = None

    def start(self, training: Training, listener: TrainingListener) -> None:
        """Run the training from its present state. If that is not possible, its listener is told of its end at once."""
        try:
            if self._live is not None:
                raise RuntimeError("another training is running")
            if self._executor is None:
                raise RuntimeError("this executor does not support training")
            training_id, num_steps, left = (
                training.training_id,
                training.layer_steps_per_iteration,
                training.layer_steps_left,
            )
            num_blocks = self._executor.add_training(training)
        except Exception as fault:
            tell_end(listener, fault)
            return
        self._live = _Live(training_id, listener)
        try:
            if not training.is_over:
                self._turns.start(training_id, num_steps, left or num_steps, num_blocks)
        except Exception as fault:
            self._end(fault)
        else:
            if training.is_over:
                self._end(None)

    def apply(self, outcome: TrainingOutcome) -> None:
        """Apply the outcome of the oldest share in flight; nothing happens if its training has ended."""
        live = self._live
        if live is None or outcome.training_id != live.training_id:
            return
        prediction = self._turns.finish(outcome)
        if outcome.num_layer_steps:
            self._stats_sink.record_training(TrainingStats(outcome.num_layer_steps, outcome.seconds, prediction))
        try:
            for report in outcome.news.reports:
                live.listener.step(report)
            if outcome.news.state is not None:
                live.listener.snapshot(outcome.news.state)
        except Exception as fault:  # against the listener's contract; what it missed cannot be repeated
            self._end(outcome.fault or fault)
            return
        if outcome.fault is not None or outcome.is_over:
            self._end(outcome.fault)

    def stop(self, training_id: int, *, wants_state: bool) -> None:
        """Stop it, after a snapshot if wanted; nothing happens if it has ended. No iteration may be in flight."""
        if self._live is not None and training_id == self._live.training_id:
            self._end(self._snapshot() if wants_state else None)

    def fail(self, fault: Exception) -> None:
        """The executor failed on an iteration with a share of the training."""
        if self._live is not None:
            self._end(fault)

    def interrupt(self, *, wants_state: bool) -> None:
        """The engine ends: end the training, if there is one, after a snapshot if wanted and possible."""
        if self._live is None:
            return
        fault = self._snapshot() if wants_state else None
        if fault is not None:
            logger.error("no snapshot of the training could be taken", exc_info=fault)
        self._end(TrainingInterrupted("the engine has ended"))

    def _snapshot(self) -> Exception | None:
        """Give the listener a snapshot. Returns the fault that prevented it, else None."""
        assert self._live is not None and self._executor is not None
        try:
            self._live.listener.snapshot(self._executor.training_state(self._live.training_id))
        except Exception as fault:
            return fault
        return None

    def _end(self, fault: Exception | None) -> None:
        assert self._live is not None and self._executor is not None
        ended, self._live = self._live, None
        self._turns.stop()
        try:
            self._executor.remove_training(ended.training_id)
        except Exception as removing:
            fault = fault or removing
        tell_end(ended.listener, fault)


class _Live(NamedTuple):
    training_id: int
    listener: TrainingListener


def tell_end(listener: TrainingListener, fault: Exception | None) -> None:
    """Make the listener's last call."""
    if isinstance(fault, InvalidRequest):  # the fault of the data or the learning rate: the client is told
        logger.info("a training has ended: %s", fault)
    elif fault is not None and not isinstance(fault, TrainingInterrupted):
        logger.error("a training has failed", exc_info=fault)
    try:
        listener.ended(fault)
    except Exception:
        logger.exception("the end of a training could not be reported")
