"""The requests that have not ended, and what the result of an iteration changes of them: the engine's apply.

Tokens are appended, choices fork, beams go on, stop conditions are looked at, and whatever ends a request gives back
what it held and leaves its one final event. Engine thread only.
"""

from __future__ import annotations

import logging
import math
from itertools import repeat

from service.core.clock import Clock
from service.core.events import Addressed, FinalEvent, Outcome, PromptEvent, TokenEvent
from service.core.iteration_plan import IterationPlan, ScheduledSequence
from service.core.iteration_result import INVALID_TOKEN_ID, IterationResult, TokenLogprobs
from service.core.request import FinishReason, Request
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import RequestStats
from service.engine.beam_search import BeamSearch
from service.engine.ports import StatsSink
from service.engine.token_gaps import TokenGaps
from service.errors import InvalidRequest, RequestError, ServerError
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.launched_iterations import IterationGroups
from service.scheduler.lockstep_decode import LockstepDecode

logger = logging.getLogger(__name__)

_NOT_FINITE = "the model produced no finite probabilities for this request"
_NOTHING_LEFT = "allowed_token_ids and bad_words leave nothing to draw that the form of the output allows"


class LiveRequests:
    """Whatever ends a request ends it through `_end_group`, with one final event.

    num_constrained: requests with a grammar.
    """

    def __init__(self, scheduler: IterationScheduler, stats_sink: StatsSink, clock: Clock) -> None:
        self._scheduler = scheduler
        self._stats_sink = stats_sink
        self._clock = clock
        self._next_sequence_id = 0
        self._events: list[Addressed] = []
        self._searches: dict[str, BeamSearch] = {}
        self._gaps = TokenGaps()
        self._result_s = self._last_result_s = 0.0  # when the present iteration's result came, and the one's before
        self.num_constrained = 0

    def add(self, request: Request) -> None:
        """Accept a request that has passed the door."""
        group = SequenceGroup(request, self._next_sequence_id)
        self._next_sequence_id += request.sampling.num_sequences
        self.num_constrained += request.grammar is not None
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

    def fail_unless_started(self, request_id: str, error: RequestError) -> None:
        """As `fail`, of a request that was in no iteration yet."""
        group = self._scheduler.pool.get(request_id)
        if group is not None and group.first_scheduled_s is None:
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

    def take_events(self) -> list[Addressed]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_token_gaps(self) -> tuple[tuple[float, int], ...]:
        """Of the tokens since the last call (`IterationStats.token_gaps`)."""
        return self._gaps.take()

    def request_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return [g.request.request_id for g in self._scheduler.pool.groups()]

    def apply(self, plan: IterationPlan, result: IterationResult, whose: IterationGroups) -> TokenCounts:
        """What the plan computed and drew becomes the requests'. A fault of one request ends that request only.

        whose: the groups of its `scheduled`, as the scheduler noted them at the launch.
        """
        counts = TokenCounts()
        self._last_result_s, self._result_s = self._result_s, self._clock.now_s()
        logprobs = result.logprobs or (None,) * len(result.token_ids)
        scored = dict(result.prompt_logprobs)
        end = len(whose.in_lockstep)
        if end:
            decodes = whose.in_lockstep
            counts.generated += self._apply_lockstep(decodes, plan.scheduled, result.token_ids, result.logprobs)
        for item, group in zip(plan.scheduled[end:], whose.apart, strict=True):
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
                self._fail_inside(group)
        return counts

    def _fail_inside(self, group: SequenceGroup) -> None:
        """A fault of ours, which ends this request only. Called where the exception is handled, to log it."""
        logger.exception("request %s failed", group.request.request_id)
        self._end_group(group, Outcome.FAILED, ServerError("the request failed inside the engine"))

    def _apply_lockstep(
        self,
        decodes: tuple[LockstepDecode, ...],
        scheduled: tuple[ScheduledSequence, ...],
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs | None, ...],
    ) -> int:
        """Tokens of decodes in lockstep, which nearly all are (scheduler/lockstep.py). What is done with one of which
        nothing is to be told but its id is spelt out: it happens some ten thousand times a second. Returns how many
        tokens were generated.
        """
        now_s, tell = self._result_s, self._events.append
        dropped: list[LockstepDecode] = []
        # More ids may follow than there are decodes in lockstep.
        for decode, item, token_id, scores in zip(
            decodes, scheduled, token_ids, logprobs or repeat(None), strict=False
        ):
            try:
                position = item[2] + 1
                if position >= decode.looked_at_from or token_id in decode.watched_ids or scores is not None:
                    if not self._apply_looked_at(decode, position, token_id, scores):
                        dropped.append(decode)
                    continue
                decode.token_ids[position] = token_id
                group = decode.group
                group.num_output_tokens += 1
                group.last_token_s = now_s
                tell((decode.request_id, token_id))
            except Exception:
                self._fail_inside(decode.group)
        decoded = [decode for decode in decodes if decode not in dropped] if dropped else decodes
        self._scheduler.note_decoded(decoded)
        self._gaps.note_lockstep(len(decoded), self._last_result_s, now_s)
        return len(decoded)

    def _apply_looked_at(
        self, decode: LockstepDecode, position: int, token_id: int, logprobs: TokenLogprobs | None
    ) -> bool:
        """False if the request ended after the launch: what it drew since is dropped."""
        group, sequence = decode.group, decode.sequence
        if self._scheduler.pool.member(decode.sequence_id) is None:
            return False
        group.last_token_s = self._result_s
        if token_id == INVALID_TOKEN_ID:
            self._end_group(group, Outcome.FAILED, _failed_draw(group.request))
            return True
        block_size = self._scheduler.blocks.block_size
        if position % block_size == 0:
            self._scheduler.cache_full_block(group, sequence, position)
        decode.looked_at(position, block_size)
        self._append_token(group, sequence, position, token_id, logprobs)
        return True

    def _apply_one(
        self,
        item: ScheduledSequence,
        draws: list[tuple[int, TokenLogprobs | None]],
        group: SequenceGroup,
        sequence: Sequence,
        counts: TokenCounts,
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
        self._gaps.note((group,), self._result_s)

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
        self.num_constrained -= group.request.grammar is not None
        self._searches.pop(group.request.request_id, None)
        stats = self._request_stats(group)
        reasons = tuple(s.finish_reason for s in group.sequences if s.finish_reason is not None)
        self._events.append((group.request.request_id, FinalEvent(outcome, stats, error)))
        self._stats_sink.record_request(stats, outcome, reasons)

    def lose(self, groups: list[SequenceGroup]) -> None:
        """Requests that were computed, or on the move, may be damaged; what others hold was not touched."""
        error = ServerError("an iteration that held this request failed")
        swap_space, pool = self._scheduler.blocks.swap_space, self._scheduler.pool
        moving = [pool.member(sequence_id) for sequence_id in swap_space.moving_sequence_ids()]
        for group in [*groups, *(member[0] for member in moving if member is not None)]:
            self.fail(group.request.request_id, error)
        self._scheduler.lose_transfers()

    def _request_stats(self, group: SequenceGroup) -> RequestStats:
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
            finished_s=self._clock.now_s(),
            num_preemptions=group.num_preemptions,
            preemptions=tuple(group.preemptions),
            waits=tuple(journal.waits),
            chunks=tuple(journal.chunks),
            num_chunks=journal.num_chunks,
            num_iterations=journal.num_iterations(longest),
            num_tokens_of_longest=longest,
        )


def _failed_draw(request: Request) -> RequestError:
    """Why a draw came to nothing: the client's own contradiction if that can be, else the model's fault."""
    sampling = request.sampling
    if request.grammar is not None and (sampling.allowed_token_ids is not None or sampling.bad_words):
        return InvalidRequest(_NOTHING_LEFT)
    return ServerError(_NOT_FINITE)


class TokenCounts:
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
