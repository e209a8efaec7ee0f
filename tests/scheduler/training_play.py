"""Requests that arrive beside a training, with a simulated clock: layer steps and iterations take given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.core.request import Request
from service.scheduler.deferred_batching import TrainingPolicy
from tests.engine.harness import Harness
from tests.engine.scripted_training import NotingListener, ScriptedTraining, TrainingToy
from tests.manual_clock import ManualClock

ITERATION_S = 0.01
"""Seconds of an iteration of requests."""


@dataclass(frozen=True)
class Served:
    """When a request came, started and ended, and what it waited for."""

    arrival_s: float
    start_s: float
    end_s: float
    reasons: tuple[str, ...]


class TrainingPlay:
    """step_s: seconds of each layer step of an iteration; empty: no training."""

    def __init__(
        self,
        policy: TrainingPolicy,
        step_s: Sequence[float],
        num_iterations: int = 1_000_000,
        *,
        overlap: bool = False,
        fails_at: int | None = None,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        num_lanes: int = 1,
    ) -> None:
        self.clock = ManualClock()
        self.executor = TrainingToy(self.clock, ITERATION_S, num_blocks=num_blocks)
        self.harness = Harness(
            num_blocks,
            executor=self.executor,
            training=policy,
            trainings=self.executor.trainings,
            clock=self.clock,
            overlap=overlap,
            max_num_seqs=max_num_seqs,
            num_lanes=num_lanes,
            max_num_batched_tokens=64,
        )
        self.listener = NotingListener()
        self.training: ScriptedTraining | None = None
        if step_s:
            self.training = ScriptedTraining(self.clock, step_s, num_iterations, fails_at)
            self.harness.engine.training.start(self.training, self.listener)
        self._arrivals: list[tuple[float, int]] = []

    def arrive(self, at_s: float, num_tokens: int = 3) -> None:
        """A request of `num_tokens` tokens will arrive at this time."""
        self._arrivals.append((at_s, num_tokens))

    def run(self, until_s: float = 0.0) -> list[Served]:
        """Run until all requests have ended and this time has come. Returns them in order of arrival."""
        engine, arrivals = self.harness.engine, sorted(self._arrivals)
        while arrivals or engine.has_requests or self.clock.now_s() < until_s:
            while arrivals and arrivals[0][0] <= self.clock.now_s():
                arrival_s, num_tokens = arrivals.pop(0)
                self._add(arrival_s, num_tokens)
            if engine.has_work:
                self._step()
            else:
                self.clock.advance(max(0.0, (arrivals[0][0] if arrivals else until_s) - self.clock.now_s()) + 1e-6)
        return [self._served(request_id) for request_id in self.harness.requests]

    def _add(self, arrival_s: float, num_tokens: int) -> None:
        number = len(self.harness.requests)
        request = self.harness.request((1 + number, 2, 3), num_tokens)
        request = Request(request.request_id, request.prompt_token_ids, request.sampling, arrival_s, "", 0, "")
        self.harness.requests[request.request_id] = request
        assert self.harness.add(request)

    def _step(self) -> None:
        self.harness.engine.step()
        self.harness.collect()
        if self.harness.engine.has_requests:
            self.harness.check()

    def _served(self, request_id: str) -> Served:
        self.harness.check_against_oracle(request_id)
        stats = self.harness.finals[request_id].stats
        assert stats.first_scheduled_s is not None
        reasons = tuple(wait.reason for wait in stats.waits)
        return Served(stats.arrival_s, stats.first_scheduled_s, stats.finished_s, reasons)
