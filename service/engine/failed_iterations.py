"""Iterations that failed: what becomes of what was in them. If they keep failing: engine_watch.py."""

from __future__ import annotations

from collections.abc import Iterable

from service.core.events import FinalEvent, Outcome, TokenEvent
from service.core.failed_launch import FailedLaunch
from service.engine.live_requests import LiveRequests
from service.engine.live_training import LiveTraining
from service.engine.outbox import BatchTokens, News
from service.engine.step_record import Launched, StepRecord
from service.errors import ServerError
from service.scheduler.iteration_scheduler import IterationScheduler


class FailedIterations:
    """An iteration has failed if the executor raised, or if a server fault kept every request in it from getting a
    token. If only some requests fail, the iteration has not failed. Engine thread only.

    num_in_a_row: consecutive failed iterations.
    """

    def __init__(
        self, requests: LiveRequests, training: LiveTraining, scheduler: IterationScheduler, record: StepRecord
    ) -> None:
        self._requests = requests
        self._training = training
        self._scheduler = scheduler
        self._record = record
        self.num_in_a_row = 0

    def lose(self, launched: Launched) -> None:
        """The executor raised on the oldest iteration in flight: end its requests and its training."""
        self.num_in_a_row += 1
        self._record.lost()
        self._requests.lose(self._scheduler.finish_iteration().all(), launched.plan)
        if launched.plan.training is not None:
            self._training.fail(ServerError("An iteration that this training was part of failed."))
        if isinstance(launched.pending, FailedLaunch):
            # Nothing was launched after it, and the executor may never have received these rows.
            self._scheduler.blocks.release_rows(launched.plan.released)

    def note(self, events: Iterable[News]) -> None:
        """An iteration gave these events. Call after one with failed requests, and after each that follows a failed
        one."""
        gave = _gave_something(events)
        if gave:
            self.num_in_a_row = 0
        elif gave is False:
            self.num_in_a_row += 1


def _gave_something(events: Iterable[News]) -> bool | None:
    """Whether the iteration with these events gave any request a token or a regular end. False if no request got
    anything and some failed by a server fault. None if there was nothing to give."""
    verdict = None
    for news in events:
        if isinstance(news, BatchTokens):
            return True
        match news[1]:
            case int() | TokenEvent() | FinalEvent(outcome=Outcome.FINISHED):
                return True
            case FinalEvent(error=ServerError()):
                verdict = False
    return verdict
