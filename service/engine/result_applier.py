"""What the result of an iteration changes of the requests that were in it: the engine's apply.

The tokens of the decode batch are applied at once; all others, and of the batch's those that must be looked at, one by
one (sequence_results.py). Engine thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.core.clock import Clock
from service.core.events import BatchTokens, FinalEvent, Outcome, TokenEvent
from service.core.iteration import IterationPlan, IterationResult
from service.engine.live_requests import LiveRequests
from service.engine.sequence_results import SequenceResults
from service.engine.step_record import ProcessedTokens
from service.errors import ServerError
from service.scheduler.decode_batch import DecodeBatch, DecodeMembers
from service.scheduler.iteration_scheduler import IterationScheduler


class ResultApplier:
    """Results come in the order of their iterations. Whatever ends a request ends it through `requests`."""

    def __init__(self, requests: LiveRequests, scheduler: IterationScheduler, clock: Clock) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._clock = clock
        self._one_by_one = SequenceResults(requests, scheduler, clock)
        self._num_told = 0  # events before the present iteration's
        self._result_s = self._last_result_s = 0.0  # when the present iteration's result came, and the one's before

    def apply(self, plan: IterationPlan, result: IterationResult) -> ProcessedTokens:
        """What the plan, the oldest that runs, computed and drew becomes the requests'. A fault of one request ends
        that request only."""
        groups = self._scheduler.finish_iteration()
        if result.finished_transfers:
            self._scheduler.finish_transfers(result.finished_transfers)
        self._num_told = len(self._requests.events)
        if plan.training is not None:  # between two tokens of the same requests, perhaps
            return ProcessedTokens(self._result_s)
        self._last_result_s, self._result_s = self._result_s, self._clock.now_s()
        tokens = ProcessedTokens(self._result_s)
        if groups.decodes is not None:
            assert groups.batch is not None
            self._apply_decodes(groups.batch, groups.decodes, result, tokens)
        if plan.scheduled:
            self._one_by_one.apply(plan, groups.scheduled, result, tokens)
        return tokens

    def gave_something(self) -> bool | None:
        """Whether the iteration that was just applied gave any request a token, or ended it in order. False if it gave
        nobody anything and some request failed by a fault of ours; None if there was nothing to give."""
        verdict = None
        for news in self._requests.events[self._num_told :]:
            if isinstance(news, BatchTokens):
                return True
            match news[1]:
                case int() | TokenEvent() | FinalEvent(outcome=Outcome.FINISHED):
                    return True
                case FinalEvent(error=ServerError()):
                    verdict = False
        return verdict

    def _apply_decodes(
        self, batch: DecodeBatch, members: DecodeMembers, result: IterationResult, tokens: ProcessedTokens
    ) -> None:
        """Apply the tokens of the decode batch: all in one step, but for those that must be looked at."""
        token_ids = result.token_ids[: len(members)]
        looked_at = batch.take(members, token_ids, self._result_s)
        self._tell_all_but(looked_at, members.request_ids, token_ids)
        num_dropped = 0
        for place, group in looked_at.items():
            try:
                logprobs = result.logprobs[place] if result.logprobs else None
                if group.live:
                    left_s = self._result_s if place in members.left else None
                    self._one_by_one.apply_decode(group, token_ids[place], logprobs, left_s)
                else:  # it ended after the launch
                    num_dropped += 1
            except Exception as fault:  # whatever it is, the others get theirs
                self._requests.fail_inside(group, fault)
        tokens.add_decodes(len(members) - num_dropped, self._last_result_s)

    def _tell_all_but(self, places: Iterable[int], request_ids: list[str], token_ids: tuple[int, ...]) -> None:
        """One plain token for each of the requests, but for those at these places."""
        left_out = sorted(places, reverse=True)
        if not left_out:
            self._requests.events.append(BatchTokens(request_ids, token_ids))
            return
        told = list(zip(request_ids, token_ids, strict=True))
        for place in left_out:
            del told[place]
        self._requests.events += told
