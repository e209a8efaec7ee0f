"""The engine's apply: update requests with the result of an iteration.

Tokens of the decode batch are applied in bulk. Everything else, including those tokens of the batch that need a look
(a stop token, for example), is applied one by one (sequence_results.py). Engine thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.core.clock import Clock
from service.core.iteration import IterationPlan, IterationResult
from service.engine.live_requests import LiveRequests
from service.engine.outbox import BatchTokens
from service.engine.sequence_results import SequenceResults
from service.engine.step_record import ProcessedTokens
from service.scheduler.decode_batch import DecodeBatch, DecodeMembers
from service.scheduler.iteration_scheduler import IterationScheduler


class ResultApplier:
    """Results come in the order in which iterations were launched. All requests are ended through `requests`."""

    def __init__(self, requests: LiveRequests, scheduler: IterationScheduler, clock: Clock) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._clock = clock
        self._one_by_one = SequenceResults(requests, scheduler, clock)
        self._result_s = self._last_result_s = 0.0  # when the current result came, and when the one before it came

    def apply(self, plan: IterationPlan, result: IterationResult) -> ProcessedTokens:
        """Apply the result of `plan`, the oldest iteration in flight. A fault of one request ends no other."""
        groups = self._scheduler.finish_iteration()
        if result.finished_transfers:
            self._scheduler.finish_transfers(result.finished_transfers)
        if plan.training is not None:  # it may lie between two tokens of a request: keep `_result_s` as it is
            return ProcessedTokens(self._result_s)
        self._last_result_s, self._result_s = self._result_s, self._clock.now_s()
        tokens = ProcessedTokens(self._result_s)
        if groups.decodes is not None:
            assert groups.batch is not None
            self._apply_decodes(groups.batch, groups.decodes, result, tokens)
        if plan.scheduled:
            self._one_by_one.apply(plan, groups.scheduled, result, tokens)
        return tokens

    def _apply_decodes(
        self, batch: DecodeBatch, members: DecodeMembers, result: IterationResult, tokens: ProcessedTokens
    ) -> None:
        """Apply the tokens of the decode batch: in bulk, except for those that need a look."""
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
                else:  # the request ended after the launch
                    num_dropped += 1
            except Exception as fault:  # whatever it is, the other requests get their tokens
                self._requests.fail_inside(group, fault)
        tokens.add_decodes(len(members) - num_dropped, self._last_result_s)

    def _tell_all_but(self, places: Iterable[int], request_ids: list[str], token_ids: tuple[int, ...]) -> None:
        """Emit one plain token event per request, except for those at `places`."""
        left_out = sorted(places, reverse=True)
        if not left_out:
            self._requests.events.append(BatchTokens(request_ids, token_ids))
            return
        told = list(zip(request_ids, token_ids, strict=True))
        for place in left_out:
            del told[place]
        self._requests.events += told
