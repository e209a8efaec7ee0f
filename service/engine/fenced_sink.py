"""Keeps faults in the statistics away from requests: they lose figures, never tokens."""

from __future__ import annotations

import logging

from service.core.events import Outcome
from service.core.rare_warning import RareWarning
from service.core.request import FinishReason
from service.core.stats import IterationStats, RequestStats, TrainingStats
from service.engine.ports import StatsSink

_logger = logging.getLogger(__name__)


class FencedSink:
    """A StatsSink that never raises. It wraps one that should not."""

    def __init__(self, sink: StatsSink) -> None:
        self._sink = sink
        self._lost = RareWarning(_logger, "statistics could not be recorded (times: %d)", of_fault=True)

    def record_iteration(self, stats: IterationStats) -> None:
        try:
            self._sink.record_iteration(stats)
        except Exception:
            self._lost.tell()

    def record_training(self, stats: TrainingStats) -> None:
        try:
            self._sink.record_training(stats)
        except Exception:
            self._lost.tell()

    def record_commands(self, seconds: float) -> None:
        try:
            self._sink.record_commands(seconds)
        except Exception:
            self._lost.tell()

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        try:
            self._sink.record_request(stats, outcome, finish_reasons)
        except Exception:
            self._lost.tell()
