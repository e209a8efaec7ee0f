"""The live requests, from acceptance to the one final event.

When a request ends, for any reason and in any state, all its resources are freed. Engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from service.core.clock import Clock
from service.core.events import FinalEvent, Outcome
from service.core.iteration import IterationPlan
from service.core.request import FinishReason, Request
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import RequestStats
from service.engine.beam_search import BeamSearch
from service.engine.outbox import Outbox
from service.engine.ports import StatsSink
from service.errors import RequestError, ServerError
from service.scheduler.iteration_scheduler import IterationScheduler

logger = logging.getLogger(__name__)


class LiveRequests:
    """Every request ends through `end_group`, with exactly one final event.

    events: gathered for publishing, also those of requests that have ended since. searches: the beam searches by
    request id. constrained: ids of live requests with a grammar. num_failed: requests that ended with an error so far.
    """

    def __init__(self, scheduler: IterationScheduler, stats_sink: StatsSink, clock: Clock) -> None:
        self._scheduler = scheduler
        self._stats_sink = stats_sink
        self._clock = clock
        self._next_sequence_id = 0
        self.events = Outbox()
        self.searches: dict[str, BeamSearch] = {}
        self.num_failed = 0
        self.constrained: set[str] = set()

    def add(self, request: Request) -> None:
        """Accept a request, which `api` has validated. If that raises, the request fails with one final event."""
        first_sequence_id = self._next_sequence_id
        self._next_sequence_id += request.sampling.num_sequences
        try:
            group = SequenceGroup(request, first_sequence_id)
            search = None if request.sampling.beam is None else BeamSearch(request.sampling)
        except Exception as fault:  # for example, its grammar could not be started
            _log(request.request_id, fault)
            stats = stats_of_lost(request, self._clock.now_s())
            self._tell_end(request.request_id, stats, Outcome.FAILED, _failed_inside(), ())
            return
        if request.grammar is not None:
            self.constrained.add(request.request_id)
        if search is not None:
            self.searches[request.request_id] = search
        try:
            self._scheduler.add(group)
        except Exception as fault:
            self.fail_inside(group, fault)

    def abort(self, request_id: str) -> None:
        """End the request, in any state; nothing happens if it has ended."""
        group = self._scheduler.pool.get(request_id)
        if group is None:
            return
        try:
            for sequence in group.computing:
                self._scheduler.group_end.cache_before_end(group, sequence)
            self.end_group(group, Outcome.ABORTED)
        except Exception as fault:  # of any kind: the other requests must go on
            self.fail_inside(group, fault)

    def fail(self, request_id: str, error: RequestError) -> None:
        """End the request with an error; nothing happens if it has ended."""
        group = self._scheduler.pool.get(request_id)
        if group is not None:
            self._fail(group, error)

    def fail_unless_started(self, request_id: str, error: RequestError) -> None:
        """As `fail`, but only if the request has not been in any iteration yet."""
        group = self._scheduler.pool.get(request_id)
        if group is not None and group.first_scheduled_s is None:
            self._fail(group, error)

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """End one choice because its text is complete. No effect before its first token, nor on beams, whose tokens are
        delivered only at the end of the search."""
        group = self._scheduler.pool.get(request_id)
        if group is None or not group.is_forked or group.request.sampling.beam is not None:
            return
        for sequence in group.live:
            if sequence.choice_index == choice_index:
                try:
                    self._scheduler.group_end.cache_before_end(group, sequence)
                    self.end_sequence(group, sequence, FinishReason.STOP)
                except Exception as fault:  # as in `abort`
                    self.fail_inside(group, fault)
                return

    def record_commands(self, seconds: float) -> None:
        """Report to the statistics how long the commands between two iterations took."""
        self._stats_sink.record_commands(seconds)

    def request_ids(self) -> list[str]:
        """Ids of all live requests."""
        return [g.request.request_id for g in self._scheduler.pool.groups()]

    def stats_so_far(self, request_ids: Iterable[str]) -> dict[str, RequestStats]:
        """Statistics, by id, of those of these requests that are live. `finished_s` is the present time."""
        now_s, stats = self._clock.now_s(), dict[str, RequestStats]()
        for request_id in request_ids:
            if (group := self._scheduler.pool.get(request_id)) is not None:
                num_uncounted = sum(batch.num_uncounted(group) for batch in self._scheduler.lanes)
                told = _request_stats(group, now_s)
                stats[request_id] = replace(told, num_output_tokens=told.num_output_tokens + num_uncounted)
        return stats

    def lose(self, groups: list[SequenceGroup], plan: IterationPlan) -> None:
        """An iteration failed: fail every request that it may have damaged, since its plan may have been carried out in
        part. These are the requests in it (`groups`), those with blocks in transfer, those whose adapter it was to
        load, and those that use blocks it was to copy; the last two may be in an iteration launched since. Blocks of
        other requests were not touched."""
        error = ServerError("An iteration that this request was part of failed.")
        blocks, pool = self._scheduler.blocks, self._scheduler.pool
        moving = [pool.member(sequence_id) for sequence_id in blocks.swap_space.swapping_sequence_ids()]
        adapter_ids = {load.adapter_id for load in plan.adapter_loads}
        misled = [g for g in pool.running if g.request.adapter and g.request.adapter.adapter_id in adapter_ids]
        copied = [pool.member(sequence_id) for sequence_id in blocks.lose({c.destination for c in plan.copies})]
        for group in [*groups, *(member[0] for member in (*moving, *copied) if member is not None), *misled]:
            self.fail(group.request.request_id, error)
        # Every request whose transfer was under way has ended above.
        blocks.swap_space.finish_all()
        self._scheduler.ledger.lost_transfers()
        for adapter_id in adapter_ids:
            blocks.adapter_slots.remove_idle(adapter_id)

    def fail_inside(self, group: SequenceGroup, fault: Exception) -> None:
        """A server fault ends this request, and no other. May also be called if ending the request has raised."""
        _log(group.request.request_id, fault)
        self.end_group(group, Outcome.FAILED, _failed_inside())

    def end_sequence(self, group: SequenceGroup, sequence: Sequence, reason: FinishReason) -> None:
        """End one choice; if it is the last live one, end the request."""
        sequence.finish_reason = reason
        if len(group.live) == 1:
            self.end_group(group, Outcome.FINISHED)
        else:
            self._scheduler.group_end.end_sequence(group, sequence)

    def end_group(self, group: SequenceGroup, outcome: Outcome, error: RequestError | None = None) -> None:
        """End the request: free its resources and emit its final event, after which it gets none. If this raises, the
        final event was not emitted, and it may be called again."""
        self._scheduler.group_end.end_group(group)
        request_id = group.request.request_id
        self.constrained.discard(request_id)
        self.searches.pop(request_id, None)
        stats = _request_stats(group, self._clock.now_s())
        reasons = tuple(s.finish_reason for s in group.sequences if s.finish_reason is not None)
        self._tell_end(request_id, stats, outcome, error, reasons)

    def _fail(self, group: SequenceGroup, error: RequestError) -> None:
        try:
            self.end_group(group, Outcome.FAILED, error)
        except Exception as fault:  # as in `abort`
            self.fail_inside(group, fault)

    def _tell_end(
        self,
        request_id: str,
        stats: RequestStats,
        outcome: Outcome,
        error: RequestError | None,
        reasons: tuple[FinishReason, ...],
    ) -> None:
        self.num_failed += outcome is Outcome.FAILED
        self.events.append((request_id, FinalEvent(outcome, stats, error)))
        self._stats_sink.record_request(stats, outcome, reasons)


def stats_of_lost(request: Request, now_s: float) -> RequestStats:
    """Statistics of a request of which only the Request itself is known."""
    sampling = request.sampling
    return RequestStats(
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=0,
        num_output_tokens=0,
        n=sampling.n,
        max_tokens=sampling.max_tokens,
        arrival_s=request.arrival_s,
        first_scheduled_s=None,
        first_token_s=None,
        finished_s=now_s,
        num_preemptions=0,
        adapter=_adapter_name(request),
    )


def _log(request_id: str, fault: Exception) -> None:
    logger.error("request %s failed", request_id, exc_info=fault)


def _failed_inside() -> ServerError:
    return ServerError("The request failed inside the engine.")


def _request_stats(group: SequenceGroup, finished_s: float) -> RequestStats:
    request, journal = group.request, group.journal
    longest = max(s.num_output_tokens for s in group.sequences)
    return RequestStats(
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=group.num_cached_tokens,
        num_output_tokens=group.num_output_tokens,
        n=request.sampling.n,
        max_tokens=request.sampling.max_tokens,
        arrival_s=request.arrival_s,
        first_scheduled_s=group.first_scheduled_s,
        first_token_s=group.first_token_s,
        finished_s=finished_s,
        num_preemptions=group.num_preemptions,
        preemptions=tuple(group.preemptions),
        waits=tuple(journal.waits),
        chunks=tuple(journal.chunks),
        num_chunks=journal.num_chunks,
        num_iterations=journal.num_iterations(longest),
        num_tokens_of_longest=longest,
        adapter=_adapter_name(request),
        num_drafted=journal.num_drafted,
        num_accepted=journal.num_accepted,
    )


def _adapter_name(request: Request) -> str:
    return "" if request.adapter is None else request.adapter.name
