"""Applies an iteration's result to one sequence: append the token, fork choices, advance beams, check stop conditions.
Engine thread only.

Most decodes never come here: result_applier.py applies them in bulk.
"""

from __future__ import annotations

import math
from itertools import groupby, repeat

from service.core.clock import Clock
from service.core.embedding import Vector, pooled
from service.core.events import Outcome, PooledEvent, PromptEvent, TokenEvent
from service.core.grammar import Matcher
from service.core.iteration import INVALID_TOKEN_ID, IterationPlan, IterationResult
from service.core.request import FinishReason, Request
from service.core.scheduled_sequence import ScheduledSequence
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.token_logprobs import TokenLogprobs
from service.engine.beam_search import BeamSearch
from service.engine.live_requests import LiveRequests
from service.engine.step_record import ProcessedTokens
from service.errors import InvalidRequest, RequestError, ServerError
from service.scheduler.forking import continue_beams, fork_choices
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.speculation import num_equal

_NOT_FINITE = "the model produced no finite probabilities for this request"
_NOT_THE_GRAMMARS = "a token was drawn that the grammar of the structured output does not allow"
_NOTHING_LEFT = "the grammar of the structured output, allowed_token_ids and bad_words together allow no token"

Draws = list[tuple[int, TokenLogprobs | None]]


class SequenceResults:
    """Every request ends through `requests`."""

    def __init__(self, requests: LiveRequests, scheduler: IterationScheduler, clock: Clock) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._clock = clock

    def apply(
        self, plan: IterationPlan, scheduled: list[SequenceGroup], result: IterationResult, tokens: ProcessedTokens
    ) -> None:
        """Apply the results of `plan.scheduled`; scheduled: the groups of its items. A fault ends one request only."""
        logprobs = result.logprobs or (None,) * len(result.token_ids)
        scored, sums = dict(result.prompt_logprobs), dict(result.pooled)
        end = len(plan.decodes)
        items = list(zip(plan.scheduled, scheduled, strict=True))
        for _, of_sequence in groupby(items, key=_sequence_id):
            (item, group), *behind = of_sequence
            drafts = [draft.token_ids[0] for draft, _ in behind]
            first, end = end, end + len(item.samples) + len(drafts)
            member = self._scheduler.pool.member(item.sequence_id)
            if member is None:
                continue  # it ended after the launch: drop what was drawn for it
            try:
                draws = list(zip(result.token_ids[first:end], logprobs[first:end], strict=True))
                if item.targets and not self._note_prompt_logprobs(group, item, scored[item.sequence_id]):
                    self._requests.end_group(group, Outcome.FAILED, ServerError(_NOT_FINITE))
                    continue
                if item.num_pooled:
                    _note_pooled(group, item, sums[item.sequence_id])
                if drafts:
                    self._apply_drafts(item, drafts, draws, group, tokens)
                else:
                    self._apply_one(item, draws, group, member[1], tokens)
            except Exception as fault:  # of any kind: the iteration's other requests must get their tokens
                self._requests.fail_inside(group, fault)

    def apply_decode(
        self,
        group: SequenceGroup,
        token_id: int,
        logprobs: TokenLogprobs | None,
        left_s: float | None,
    ) -> None:
        """Apply a token of the decode batch that needs a look. The group is live. left_s: time of the result, if the
        group has left the batch since the launch (it may be back in it by now); else None."""
        sequence = group.live[0]
        if token_id == INVALID_TOKEN_ID:
            self._requests.end_group(group, Outcome.FAILED, _failed_draw(group.request))
        elif left_s is not None:
            group.last_token_s = left_s
            self._append_token(group, sequence, sequence.num_known_tokens, token_id, logprobs)
        else:
            self._tell_token(group, sequence, len(sequence.token_ids) - 1, token_id, logprobs)

    def _apply_one(
        self,
        item: ScheduledSequence,
        draws: Draws,
        group: SequenceGroup,
        sequence: Sequence,
        tokens: ProcessedTokens,
    ) -> None:
        start, end = item.num_computed_tokens, item.num_computed_tokens + len(item.token_ids)
        tokens.add(sequence, start, end, len(draws))
        self._scheduler.history.computed(group.request.client, end - start)
        # Blocks of the answer are cached when it ends, since no other request can use them before.
        self._cache_blocks(group, sequence, min(end, sequence.num_prompt_tokens))
        self._scheduler.blocks.forget_unseen(sequence.sequence_id, end)
        if group.prompt_logprobs is not None and end >= sequence.num_prompt_tokens:
            self._requests.events.append((group.request.request_id, PromptEvent(tuple(group.prompt_logprobs))))
            group.prompt_logprobs = None
        if not draws:
            if end >= sequence.num_prompt_tokens and group.request.sampling.max_tokens == 0:
                self._end_prompt(group)
            return
        if any(token_id == INVALID_TOKEN_ID for token_id, _ in draws):
            self._requests.end_group(group, Outcome.FAILED, _failed_draw(group.request))
            return
        if group.request.sampling.beam is not None:
            self._note_top(group, sequence, draws[0][1])
            return
        receivers = [sequence] if group.is_forked else list(group.live)
        if not group.is_forked:
            fork_choices(group, self._scheduler.blocks)
        for receiver, (token_id, logprobs) in zip(receivers, draws, strict=True):
            if group.live:  # else the grammar has failed for an earlier choice, which ended all choices
                self._append_token(group, receiver, end, token_id, logprobs)
        self._scheduler.history.generated(group.request.client, len(draws))
        tokens.note_gap(group)

    def _apply_drafts(
        self,
        item: ScheduledSequence,
        drafts: list[int],
        draws: Draws,
        group: SequenceGroup,
        tokens: ProcessedTokens,
    ) -> None:
        """Apply the draws one by one while the token that each was computed after is right: one more than there are
        right drafts. Later draws follow a wrong token and are dropped."""
        sequence, start, journal = group.live[0], item.num_computed_tokens, group.journal
        num_right, num_applied = num_equal(drafts, [token_id for token_id, _ in draws]), 0
        self._scheduler.blocks.forget_unseen(sequence.sequence_id, start)
        journal.num_drafted += len(drafts)
        for token_id, logprobs in draws[: num_right + 1]:
            if not group.live:
                break  # the token before was the last one
            if token_id == INVALID_TOKEN_ID:
                self._requests.end_group(group, Outcome.FAILED, _failed_draw(group.request))
                break
            journal.num_accepted += num_applied > 0
            num_applied += 1
            sequence.num_computed_tokens = start + num_applied
            self._append_token(group, sequence, start + num_applied, token_id, logprobs)
        tokens.drafts.append((len(drafts), max(0, num_applied - 1)))
        tokens.add(sequence, start, start + num_applied, num_applied)
        self._scheduler.history.decoded(group.request.client, num_applied)
        tokens.note_gap(group)

    def _end_prompt(self, group: SequenceGroup) -> None:
        """The prompt is fully computed, and no token is to be generated."""
        reason, pooling = FinishReason.LENGTH, group.request.sampling.pooling
        if pooling is not None:
            assert group.pooled is not None, "the last token's hidden state is always wanted"
            vector = pooled(pooling, group.pooled, group.request.num_prompt_tokens)
            if not math.isfinite(vector.sum()):
                self._requests.end_group(group, Outcome.FAILED, ServerError(_NOT_FINITE))
                return
            self._requests.events.append((group.request.request_id, PooledEvent(vector)))
            reason = FinishReason.STOP
        for choice in group.live:
            choice.finish_reason = reason
        self._requests.end_group(group, Outcome.FINISHED)

    def _note_prompt_logprobs(
        self, group: SequenceGroup, item: ScheduledSequence, logprobs: tuple[TokenLogprobs, ...]
    ) -> bool:
        """Store the chunk's prompt logprobs. False if some are NaN. After a preemption the same positions may come
        again, with equal values."""
        if group.prompt_logprobs is not None:
            start = item.num_computed_tokens
            group.prompt_logprobs[start : start + len(logprobs)] = logprobs
        return not any(math.isnan(entry.chosen) for entry in logprobs)

    def _note_top(self, group: SequenceGroup, sequence: Sequence, logprobs: TokenLogprobs | None) -> None:
        """A beam's last token is computed. Once this is so for all beams, the search takes its next step."""
        assert logprobs is not None, "a beam asks for the best next tokens"
        sequence.top = logprobs.top
        tops = [beam.top for beam in group.computing if beam.top is not None]
        if len(tops) < len(group.computing):
            return
        search = self._requests.searches[group.request.request_id]
        candidates = search.advance(tops)
        for beam in group.computing:
            beam.top = None
        if group.first_token_s is None:
            group.first_token_s = self._clock.now_s()
        if candidates:
            if not group.is_forked:  # the prompt's single beam becomes `width` beams
                fork_choices(group, self._scheduler.blocks)
            parents, token_ids = [c.parent for c in candidates], [c.token_id for c in candidates]
            continue_beams(group.live, parents, token_ids, self._scheduler.blocks)
            self._scheduler.history.generated(group.request.client, len(candidates))
        else:
            self._end_search(group, search)

    def _end_search(self, group: SequenceGroup, search: BeamSearch) -> None:
        """The search is over: its best hypotheses become the choices, and all their tokens are emitted at once."""
        request = group.request
        for index, hypothesis in enumerate(search.best(request.sampling.n)):
            token_ids, logprobs = hypothesis.token_ids, hypothesis.logprobs or repeat(None)
            ends = (*repeat(None, len(token_ids) - 1), hypothesis.finish_reason)
            events = [TokenEvent(index, *of_token) for of_token in zip(token_ids, ends, logprobs, strict=False)]
            self._requests.events += [(request.request_id, event) for event in events]
            group.num_output_tokens += len(events)
            group.sequences[index].finish_reason = hypothesis.finish_reason
        self._requests.end_group(group, Outcome.FINISHED)

    def _append_token(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        position: int,
        token_id: int,
        logprobs: TokenLogprobs | None,
    ) -> None:
        matcher = sequence.matcher
        if matcher is not None and not matcher.accept(token_id):
            self._requests.end_group(group, Outcome.FAILED, _refused_token(matcher))
            return
        sequence.set_drawn(position, token_id)
        group.num_output_tokens += 1
        if group.first_token_s is None:
            group.first_token_s = self._clock.now_s()
        self._tell_token(group, sequence, position, token_id, logprobs)

    def _tell_token(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        position: int,
        token_id: int,
        logprobs: TokenLogprobs | None,
    ) -> None:
        """Emit a token that was appended to the sequence, and end the sequence if it is the last one."""
        reason = _finish_reason(group.request, sequence, position, token_id)
        is_plain = reason is None and logprobs is None and len(group.sequences) == 1
        event = token_id if is_plain else TokenEvent(sequence.choice_index, token_id, reason, logprobs)
        self._requests.events.append((group.request.request_id, event))
        if reason is not None:
            self._cache_blocks(group, sequence, position)
            self._requests.end_sequence(group, sequence, reason)

    def _cache_blocks(self, group: SequenceGroup, sequence: Sequence, end: int) -> None:
        """Offer the sequence's full blocks before token `end` to the prefix cache."""
        self._scheduler.blocks.cache_prefix(sequence, group.request.prefix_salt, end)


def _sequence_id(item: tuple[ScheduledSequence, SequenceGroup]) -> int:
    return item[0].sequence_id


def _note_pooled(group: SequenceGroup, item: ScheduledSequence, vector: Vector) -> None:
    """Add a chunk's hidden states to the sum. A chunk at position 0 restarts it: after a preemption the prompt may be
    computed again."""
    if group.pooled is None or item.num_computed_tokens == 0:
        group.pooled = vector
    else:
        group.pooled = group.pooled + vector


def _finish_reason(request: Request, sequence: Sequence, position: int, token_id: int) -> FinishReason | None:
    """Why the sequence ends with this token, which was just drawn; None if it goes on."""
    is_complete = sequence.matcher is not None and sequence.matcher.is_finished
    if is_complete or token_id in request.sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if position + 1 == sequence.max_num_tokens else None


def _refused_token(matcher: Matcher) -> RequestError:
    """Why a token was not accepted. A grammar that exceeds its limits is the client's fault; a token that the mask
    should have forbidden is ours."""
    return matcher.refusal or ServerError(_NOT_THE_GRAMMARS)


def _failed_draw(request: Request) -> RequestError:
    """Why a draw failed. Constraints that leave no token are the client's fault; else logits were not finite."""
    sampling = request.sampling
    if request.grammar is not None and (sampling.allowed_token_ids is not None or sampling.bad_words):
        return InvalidRequest(_NOTHING_LEFT)
    return ServerError(_NOT_FINITE)
