"""One iteration: decide, execute, apply (ORCA, figure 5). Synchronous; engine thread only.

Iterations may overlap: the next one is decided and launched while the one before it still runs, so that the device
never waits for the host. Decoding needs no result for that. The executor has the ids that were drawn (PENDING_TOKEN_ID
in the plan), and lengths and blocks are known beforehand. Only a stop is seen one iteration late: the token that was
drawn meanwhile is dropped, and blocks stay until that iteration is over (`IterationScheduler.finish_iteration`). What
needs the result, as the several choices of a prompt do, sits out one iteration; preemption waits until nothing runs.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from itertools import repeat
from typing import NamedTuple

from service.core.clock import Clock
from service.core.events import Addressed, FinalEvent, Outcome, PromptEvent, TokenEvent
from service.core.grammar import TokenMasker
from service.core.iteration_plan import IterationPlan, ScheduledSequence
from service.core.iteration_result import INVALID_TOKEN_ID, IterationResult, TokenLogprobs
from service.core.request import FinishReason, Request
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import EngineSnapshot, IterationStats, RequestStats
from service.engine.beam_search import BeamSearch
from service.engine.grammar_masks import with_masks
from service.engine.ports import Executor, IdleWork, NoIdleWork, PendingIteration, StatsSink
from service.errors import InvalidRequest, RequestError, ServerError
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.launched_iterations import IterationGroups

logger = logging.getLogger(__name__)

_NOTICEABLE_WAIT_S = 2e-4
"""Longer than fetching a result that is there."""

_NOT_FINITE = "the model produced no finite probabilities for this request"
_NOTHING_LEFT = "allowed_token_ids and bad_words leave nothing to draw that the form of the output allows"

KV_TOKENS_EVERY_S = 0.1


class Engine:
    """Owns every live request. Whatever ends a request ends it through `_end_group`, with one final event.

    overlap: whether an iteration is launched while another runs. The tokens are the same either way.
    masker: computes what draws may be; needed by requests with grammars only. idle_work: for `use_idle_time`.
    """

    def __init__(
        self,
        scheduler: IterationScheduler,
        executor: Executor,
        stats_sink: StatsSink,
        clock: Clock,
        *,
        overlap: bool = False,
        masker: TokenMasker | None = None,
        idle_work: IdleWork | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._stats_sink = stats_sink
        self._clock = clock
        self._masker = masker
        self._idle_work = idle_work or NoIdleWork()
        self._num_constrained = 0
        self._next_sequence_id = 0
        self._events: list[Addressed] = []
        self._searches: dict[str, BeamSearch] = {}
        self._batch_size = 0
        self._launched: deque[_Launched] = deque()
        self._max_launched = 2 if overlap else 1
        self._executed_s = 0.0
        self._kv_tokens = 0
        self._kv_tokens_due_s = 0.0
        self.num_failed_in_a_row = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: some request has not ended, some iteration still runs, or blocks that
        nobody needs any more are still on their way."""
        return len(self._scheduler.pool) > 0 or bool(self._launched) or self._scheduler.blocks.swap_space.has_transfers

    def add(self, request: Request) -> None:
        """Accept a request that has passed the door."""
        group = SequenceGroup(request, self._next_sequence_id)
        self._next_sequence_id += request.sampling.num_sequences
        self._num_constrained += request.grammar is not None
        if request.sampling.beam is not None:
            self._searches[request.request_id] = BeamSearch(request.sampling)
        self._scheduler.add(group)

    def abort(self, request_id: str) -> None:
        """End the request in whatever state it is; nothing happens if it has ended."""
        group = self._scheduler.pool.get(request_id)
        if group is not None:
            self._end_group(group, Outcome.ABORTED)

    def fail(self, request_id: str, error: RequestError) -> None:
        """End the request with an error; nothing happens if it has ended."""
        group = self._scheduler.pool.get(request_id)
        if group is not None:
            self._end_group(group, Outcome.FAILED, error)

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """End one choice because its text is complete. Without effect before its first token, and on beams: their
        tokens come when all is over."""
        group = self._scheduler.pool.get(request_id)
        if group is None or not group.is_forked or group.request.sampling.beam is not None:
            return
        for sequence in group.live:
            if sequence.choice_index == choice_index:
                self._end_sequence(group, sequence, FinishReason.STOP)
                return

    def step(self) -> None:
        """Decide and launch the next iteration; apply the oldest if as many run as may, or all if none was launched.

        A fault of the executor ends the requests that were in that iteration, and no others.
        """
        may_run = self._max_launched - 1 if self._launch_next() else 0
        while len(self._launched) > may_run:
            self._complete(self._launched.popleft())

    def use_idle_time(self) -> bool:
        """A piece of the work that can wait, while the engine has none; whether there is more."""
        assert not self.has_work
        return self._idle_work.do_some()

    def note_commands(self, seconds: float) -> None:
        """Adding and removing requests took so long."""
        self._stats_sink.record_commands(seconds)

    def take_events(self) -> list[Addressed]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def request_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return [g.request.request_id for g in self._scheduler.pool.groups()]

    def snapshot(self) -> EngineSnapshot:
        pool, blocks = self._scheduler.pool, self._scheduler.blocks
        return EngineSnapshot(
            num_running=len(pool.running),
            num_waiting=len(pool.waiting),
            waiting_tokens=pool.waiting_tokens,
            batch_size=self._batch_size if pool.running else 0,
            used_blocks=blocks.pool.num_used,
            total_blocks=blocks.pool.num_blocks,
            block_size=blocks.block_size,
            kv_tokens=self._count_kv_tokens(),
        )

    def _count_kv_tokens(self) -> int:
        """Looks at every running sequence, so not after every iteration."""
        now_s = self._clock.now_s()
        if now_s >= self._kv_tokens_due_s or not self._scheduler.pool.running:
            self._kv_tokens = self._scheduler.num_cached_tokens()
            self._kv_tokens_due_s = now_s + KV_TOKENS_EVERY_S
        return self._kv_tokens

    def _decide(self) -> IterationPlan:
        plan = self._scheduler.schedule()
        if not self._num_constrained:
            return plan
        assert self._masker is not None, "who accepts grammars has a masker"
        return with_masks(plan, self._scheduler.pool, self._masker)

    def _launch_next(self) -> bool:
        """False if nothing can be decided, or the launch has failed."""
        started_s = self._clock.now_s()
        plan = self._decide()
        if plan.is_empty:
            return False
        scheduled_s = self._clock.now_s()
        self._batch_size = len(plan.scheduled)
        pending: PendingIteration
        try:
            pending = self._executor.launch(plan)
        except Exception as fault:  # told by `wait`, in its turn
            pending = _FailedLaunch(fault)
        tally = self._scheduler.take_tally()
        self._launched.append(_Launched(plan, pending, tally, started_s, scheduled_s, self._clock.now_s()))
        return not isinstance(pending, _FailedLaunch)

    def _complete(self, launched: _Launched) -> None:
        """Wait for the iteration and apply it."""
        started_s = self._clock.now_s()
        plan = launched.plan
        try:
            result = launched.pending.wait()
        except Exception:
            logger.exception("an iteration of %d sequences failed", len(plan.scheduled))
            self.num_failed_in_a_row += 1
            self._fail(self._scheduler.finish_iteration().groups)
            self._scheduler.release_again(plan.released)
            return
        self.num_failed_in_a_row = 0
        executed_s = self._clock.now_s()
        whose = self._scheduler.finish_iteration()
        self._scheduler.finish_transfers(result.finished_transfers)
        device_s = executed_s - max(launched.scheduled_s, self._executed_s)
        # Where a later iteration was launched first and the result was there by then, this one ended some time before.
        is_exact = not self._launched or executed_s - started_s > _NOTICEABLE_WAIT_S
        self._scheduler.observe(plan, device_s, is_exact=is_exact)
        self._executed_s = executed_s
        counts = self._apply(plan, result, whose)
        self._record(launched, counts, started_s, executed_s, device_s)

    def _apply(self, plan: IterationPlan, result: IterationResult, whose: IterationGroups) -> _TokenCounts:
        counts = _TokenCounts()
        logprobs = result.logprobs or (None,) * len(result.token_ids)
        scored = dict(result.prompt_logprobs)
        groups, end = whose.groups, whose.num_lockstep
        if end:
            counts.generated += self._apply_lockstep(plan.scheduled[:end], result.token_ids, result.logprobs)
        for item, group in zip(plan.scheduled[end:], groups[end:], strict=True):
            first, end = end, end + len(item.samples)
            member = self._scheduler.pool.member(item.sequence_id)
            if member is None:
                continue  # it ended after the launch; what it drew since is dropped
            try:
                draws = list(zip(result.token_ids[first:end], logprobs[first:end], strict=True))
                if item.targets and not self._note_prompt_logprobs(group, item, scored[item.sequence_id]):
                    self._end_group(group, Outcome.FAILED, ServerError(_NOT_FINITE))
                    continue
                self._apply_one(item, draws, group, member[1], counts)
            except Exception:
                logger.exception("request %s failed", group.request.request_id)
                self._end_group(group, Outcome.FAILED, ServerError("the request failed inside the engine"))
        return counts

    def _apply_lockstep(
        self,
        scheduled: tuple[ScheduledSequence, ...],
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs | None, ...],
    ) -> int:
        """`_apply_one` and `_append_token` for decodes in lockstep, which nearly all are (scheduler/lockstep.py): spelt
        out, since it happens some ten thousand times a second. Returns how many tokens were generated.
        """
        scheduler, events = self._scheduler, self._events
        members, block_size = scheduler.pool.members, scheduler.blocks.block_size
        decoded: list[SequenceGroup] = []
        for item, token_id, scores in zip(scheduled, token_ids, logprobs or repeat(None)):  # noqa: B905 - more ids may follow
            member = members.get(item[0])
            if member is None:
                continue  # it ended after the launch; what it drew since is dropped
            group, sequence = member
            request = group.request
            decoded.append(group)
            if token_id == INVALID_TOKEN_ID:
                self._end_group(group, Outcome.FAILED, _failed_draw(request))
                continue
            position = item[2] + 1
            if position % block_size == 0:
                scheduler.cache_full_block(group, sequence, position)
            if (
                token_id in request.sampling.stop_token_ids
                or position + 1 == sequence.max_num_tokens
                or scores is not None
                or len(group.sequences) > 1
            ):
                self._append_token(group, sequence, position, token_id, scores)
                continue
            sequence.set_drawn(position, token_id)
            group.num_output_tokens += 1
            events.append((request.request_id, token_id))
        scheduler.note_decoded(decoded)
        return len(decoded)

    def _apply_one(
        self,
        item: ScheduledSequence,
        draws: list[tuple[int, TokenLogprobs | None]],
        group: SequenceGroup,
        sequence: Sequence,
        counts: _TokenCounts,
    ) -> None:
        start, end = item.num_computed_tokens, item.num_computed_tokens + len(item.token_ids)
        counts.add(sequence, start, end, len(draws))
        self._scheduler.note_computed(group, sequence, start, end)
        if group.prompt_logprobs is not None and end >= sequence.num_prompt_tokens:
            self._events.append((group.request.request_id, PromptEvent(tuple(group.prompt_logprobs))))
            group.prompt_logprobs = None
        if not draws:
            if end >= sequence.num_prompt_tokens and group.request.sampling.max_tokens == 0:
                self._end_group(group, Outcome.FINISHED)
            return
        if any(token_id == INVALID_TOKEN_ID for token_id, _ in draws):
            self._end_group(group, Outcome.FAILED, _failed_draw(group.request))
            return
        if group.request.sampling.beam is not None:
            self._note_top(group, sequence, draws[0][1])
            return
        receivers = [sequence] if group.is_forked else list(group.live)
        if not group.is_forked:
            self._scheduler.fork_choices(group)
        for receiver, (token_id, logprobs) in zip(receivers, draws, strict=True):
            if group.live:  # a grammar's failure ends all choices at once
                self._append_token(group, receiver, end, token_id, logprobs)
        self._scheduler.note_generated(group, len(draws))

    def _note_prompt_logprobs(
        self, group: SequenceGroup, item: ScheduledSequence, logprobs: tuple[TokenLogprobs, ...]
    ) -> bool:
        """After a preemption the same positions may come again, with the same values. False if some are no numbers."""
        if group.prompt_logprobs is not None:
            start = item.num_computed_tokens
            group.prompt_logprobs[start : start + len(logprobs)] = logprobs
        return not any(math.isnan(entry.chosen) for entry in logprobs)

    def _note_top(self, group: SequenceGroup, sequence: Sequence, logprobs: TokenLogprobs | None) -> None:
        """A beam is computed to its end. Once all are, the search takes its next step."""
        assert logprobs is not None, "a beam asks for the best next tokens"
        sequence.top = logprobs.top
        tops = [beam.top for beam in group.computing if beam.top is not None]
        if len(tops) < len(group.computing):
            return
        search = self._searches[group.request.request_id]
        going_on = search.advance(tops)
        for beam in group.computing:
            beam.top = None
        if group.first_token_s is None:
            group.first_token_s = self._clock.now_s()
        if going_on:
            self._scheduler.continue_beams(group, [c.parent for c in going_on], [c.token_id for c in going_on])
            self._scheduler.note_generated(group, len(going_on))
        else:
            self._end_search(group, search)

    def _end_search(self, group: SequenceGroup, search: BeamSearch) -> None:
        """The best hypotheses are the choices; all their tokens come at once."""
        request = group.request
        for index, hypothesis in enumerate(search.best(request.sampling.n)):
            token_ids, logprobs = hypothesis.token_ids, hypothesis.logprobs or repeat(None)
            ends = (*repeat(None, len(token_ids) - 1), hypothesis.finish_reason)
            events = [TokenEvent(index, *of_token) for of_token in zip(token_ids, ends, logprobs, strict=False)]
            self._events += [(request.request_id, event) for event in events]
            group.num_output_tokens += len(events)
            group.sequences[index].finish_reason = hypothesis.finish_reason
        self._end_group(group, Outcome.FINISHED)

    def _append_token(
        self, group: SequenceGroup, sequence: Sequence, position: int, token_id: int, logprobs: TokenLogprobs | None
    ) -> None:
        sampling, matcher = group.request.sampling, sequence.matcher
        if matcher is not None and not matcher.accept(token_id):
            self._end_group(group, Outcome.FAILED, ServerError("the grammar has outgrown the limits of this server"))
            return
        sequence.set_drawn(position, token_id)
        group.num_output_tokens += 1
        if group.first_token_s is None:
            group.first_token_s = self._clock.now_s()
        reason: FinishReason | None = None
        if token_id in sampling.stop_token_ids or (matcher is not None and matcher.is_finished):
            reason = FinishReason.STOP
        elif position + 1 == sequence.max_num_tokens:
            reason = FinishReason.LENGTH
        is_plain = reason is None and logprobs is None and len(group.sequences) == 1
        event = token_id if is_plain else TokenEvent(sequence.choice_index, token_id, reason, logprobs)
        self._events.append((group.request.request_id, event))
        if reason is not None:
            self._end_sequence(group, sequence, reason)

    def _end_sequence(self, group: SequenceGroup, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        if len(group.live) == 1:
            self._end_group(group, Outcome.FINISHED)
        else:
            self._scheduler.end_sequence(group, sequence)

    def _end_group(self, group: SequenceGroup, outcome: Outcome, error: RequestError | None = None) -> None:
        self._scheduler.end_group(group)
        self._num_constrained -= group.request.grammar is not None
        self._searches.pop(group.request.request_id, None)
        stats = self._request_stats(group)
        reasons = tuple(s.finish_reason for s in group.sequences if s.finish_reason is not None)
        self._events.append((group.request.request_id, FinalEvent(outcome, stats, error)))
        self._stats_sink.record_request(stats, outcome, reasons)

    def _fail(self, groups: list[SequenceGroup]) -> None:
        """Requests that were computed, or on the move, may be damaged; what others hold was not touched."""
        error = ServerError("an iteration that held this request failed")
        swap_space, pool = self._scheduler.blocks.swap_space, self._scheduler.pool
        moving = [pool.member(sequence_id) for sequence_id in swap_space.moving_sequence_ids()]
        for group in [*groups, *(member[0] for member in moving if member is not None)]:
            self.fail(group.request.request_id, error)
        self._scheduler.lose_transfers()

    def _request_stats(self, group: SequenceGroup) -> RequestStats:
        request, journal = group.request, group.journal
        return RequestStats(
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=group.num_cached_tokens,
            num_output_tokens=group.num_output_tokens,
            n=request.sampling.n,
            max_tokens=request.sampling.max_tokens,
            arrival_s=request.arrival_s,
            first_scheduled_s=group.first_scheduled_s,
            first_token_s=group.first_token_s,
            finished_s=self._clock.now_s(),
            num_preemptions=group.num_preemptions,
            preemptions=tuple(group.preemptions),
            waits=tuple(journal.waits),
            chunks=tuple(journal.chunks),
            num_chunks=journal.num_chunks,
            num_iterations=journal.num_iterations(max(s.num_output_tokens for s in group.sequences)),
        )

    def _record(
        self, launched: _Launched, counts: _TokenCounts, wait_started_s: float, executed_s: float, device_s: float
    ) -> None:
        tally = launched.tally
        self._stats_sink.record_iteration(
            IterationStats(
                batch_size=len(launched.plan.scheduled),
                prompt_tokens=counts.prompt,
                recomputed_tokens=counts.recomputed,
                generated_tokens=counts.generated,
                num_dropped=tally.num_dropped,
                num_swapped=tally.num_swapped,
                prefix_queried_tokens=tally.prefix_queried_tokens,
                prefix_hit_tokens=tally.prefix_hit_tokens,
                swapped_blocks=tally.swapped_blocks,
                schedule_s=launched.scheduled_s - launched.started_s,
                launch_s=launched.launched_s - launched.scheduled_s,
                wait_s=executed_s - wait_started_s,
                device_s=device_s,
                apply_s=self._clock.now_s() - executed_s,
                predictions=tally.predictions,
            )
        )


def _failed_draw(request: Request) -> RequestError:
    """Why a draw came to nothing: the client's own contradiction if that can be, else the model's fault."""
    sampling = request.sampling
    if request.grammar is not None and (sampling.allowed_token_ids is not None or sampling.bad_words):
        return InvalidRequest(_NOTHING_LEFT)
    return ServerError(_NOT_FINITE)


class _TokenCounts:
    """Tokens of one iteration by kind."""

    __slots__ = ("generated", "prompt", "recomputed")

    def __init__(self) -> None:
        self.generated = 0
        self.prompt = 0
        self.recomputed = 0

    def add(self, sequence: Sequence, start: int, end: int, num_drawn: int) -> None:
        """Count a share of the iteration: tokens `start` to `end` were computed."""
        fresh = max(start, sequence.recompute_until)
        self.generated += num_drawn
        self.recomputed += max(0, min(end, sequence.recompute_until) - start)
        self.prompt += max(0, min(end, sequence.num_prompt_tokens) - fresh)


class _Launched(NamedTuple):
    """An iteration that runs, and what is to be told of it. Seconds on the engine's clock."""

    plan: IterationPlan
    pending: PendingIteration
    tally: DecisionTally
    started_s: float
    scheduled_s: float
    launched_s: float


class _FailedLaunch:
    """Tells of its fault in its turn, after the iterations before it."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def wait(self) -> IterationResult:
        raise self._fault
