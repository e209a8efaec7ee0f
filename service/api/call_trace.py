"""Traces of calls: where a call's time went. A trace is opened when the call is accepted and filled in as its prompts
end; the last calls' traces are kept."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from service.api.call_head import CallHead
from service.core.events import FinalEvent, Outcome
from service.core.request import FinishReason, Request
from service.core.stats import RequestStats
from service.protocol.trace import ChunkTrace, PreemptionTrace, PromptTrace, RequestTrace, TraceOutcome, WaitTrace

MAX_TRACES = 1000


class _Prompt(NamedTuple):
    request_id: str
    num_tokens: int
    n: int
    max_tokens: int


class _End(NamedTuple):
    """How a prompt's request ended. Without the error: its traceback would keep all that the call held."""

    outcome: Outcome
    stats: RequestStats


class CallTrace:
    """The facts of one call; `show` converts them only when somebody asks. grammar_s: seconds of compiling a
    grammar."""

    def __init__(self, head: CallHead, model: str, requests: Sequence[Request], grammar_s: float | None = None) -> None:
        self.head = head
        self.model = model
        self.adapter = next((r.adapter.name for r in requests if r.adapter is not None), None)
        self.deterministic = any(r.sampling.deterministic for r in requests)
        self.finish_reasons: Counter[FinishReason] = Counter()
        self._grammar_s = grammar_s
        self._prompts = [
            _Prompt(r.request_id, r.num_prompt_tokens, r.sampling.n, r.sampling.max_tokens) for r in requests
        ]
        self._ends: dict[int, _End | None] = {}
        self._so_far: dict[int, RequestStats] = {}
        self._watchers: list[asyncio.Event] = []

    @property
    def running_ids(self) -> list[str]:
        """The ids of the requests that have not ended."""
        return [prompt.request_id for index, prompt in enumerate(self._prompts) if index not in self._ends]

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(prompt.num_tokens for prompt in self._prompts)

    @property
    def ended(self) -> list[tuple[int, RequestStats]]:
        """Index and stats of the prompts that have ended. A prompt whose client left has no stats."""
        return [(index, end.stats) for index, end in self._ends.items() if end is not None]

    @property
    def outcome(self) -> TraceOutcome:
        """The worst of its prompts' outcomes."""
        return _worst([self._outcome(index) for index in range(len(self._prompts))])

    def note_finish(self, reason: FinishReason) -> None:
        """One of its choices is complete."""
        self.finish_reasons[reason] += 1

    def note_end(self, prompt_index: int, event: FinalEvent | None) -> None:
        """The prompt's request has ended; event None: the client left, and the request is being aborted."""
        self._ends[prompt_index] = None if event is None else _End(event.outcome, event.stats)
        self._so_far.pop(prompt_index, None)
        for watcher in self._watchers:
            watcher.set()

    def note_progress(self, stats: Mapping[str, RequestStats]) -> None:
        """Stats so far, by request id. Requests that have ended are left out, since their final stats are known."""
        for index, prompt in enumerate(self._prompts):
            if index not in self._ends and prompt.request_id in stats:
                self._so_far[index] = stats[prompt.request_id]

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """Gives an event that is set whenever a prompt ends."""
        watcher = asyncio.Event()
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)

    def show(self) -> RequestTrace:
        """The trace as the API returns it."""
        prompts = [self._show_prompt(index) for index in range(len(self._prompts))]
        return RequestTrace(
            id=self.head.call_id,
            request_id=self.head.request_id,
            created=self.head.created,
            model=self.model,
            adapter=self.adapter,
            deterministic=self.deterministic,
            outcome=self.outcome,
            finish_reasons={reason.value: count for reason, count in self.finish_reasons.items()},
            prompts=prompts,
        )

    def _outcome(self, index: int) -> TraceOutcome:
        if index not in self._ends:
            return "running"
        end = self._ends[index]
        return "aborted" if end is None else end.outcome.value

    def _show_prompt(self, index: int) -> PromptTrace:
        known = self._prompts[index]
        prompt = PromptTrace(
            index=index,
            outcome=self._outcome(index),
            prompt_tokens=known.num_tokens,
            n=known.n,
            max_tokens=known.max_tokens,
            grammar_s=self._grammar_s,
        )
        end = self._ends.get(index)
        if end is not None:
            _add_stats(prompt, end.stats)
        elif index in self._so_far:
            _add_stats(prompt, self._so_far[index])
            prompt.finished_s = None
        return prompt


class TraceStore:
    """The last MAX_TRACES calls, by their answer's id and by their request id. Event-loop thread only."""

    def __init__(self) -> None:
        self._traces: deque[CallTrace] = deque()
        self._by_id: dict[tuple[str, str], CallTrace] = {}

    def add(self, trace: CallTrace) -> None:
        self._traces.append(trace)
        self._by_id.update(dict.fromkeys(_keys(trace.head), trace))
        if len(self._traces) > MAX_TRACES:
            oldest = self._traces.popleft()
            for key in _keys(oldest.head):
                if self._by_id.get(key) is oldest:  # else a later call has the same id
                    del self._by_id[key]

    def get(self, call_or_request_id: str, client: str) -> CallTrace | None:
        """The last trace with this id; None if there is none, or if it belongs to another client."""
        return self._by_id.get((client, call_or_request_id))


def _keys(head: CallHead) -> set[tuple[str, str]]:
    return {(head.client, each) for each in (head.call_id, head.request_id) if each}


def _worst(outcomes: Sequence[TraceOutcome]) -> TraceOutcome:
    order: tuple[TraceOutcome, ...] = ("failed", "aborted", "running", "finished")
    return next(outcome for outcome in order if outcome in outcomes)


def _add_stats(prompt: PromptTrace, stats: RequestStats) -> None:
    """stats: of a request that has ended, or so far."""

    def since_arrival(time_s: float) -> float:
        return round(time_s - stats.arrival_s, 6)

    def if_it_came(time_s: float | None) -> float | None:
        return None if time_s is None else since_arrival(time_s)

    prompt.cached_tokens = stats.num_cached_tokens
    prompt.output_tokens = stats.num_output_tokens
    prompt.first_scheduled_s = if_it_came(stats.first_scheduled_s)
    prompt.first_token_s = if_it_came(stats.first_token_s)
    prompt.finished_s = since_arrival(stats.finished_s)
    prompt.iterations = stats.num_iterations
    if stats.num_drafted:
        prompt.drafted_tokens, prompt.accepted_tokens = stats.num_drafted, stats.num_accepted
    prompt.num_chunks = stats.num_chunks
    prompt.preemptions = stats.num_preemptions
    prompt.waits = [
        WaitTrace(since_s=since_arrival(wait.since_s), until_s=since_arrival(wait.until_s), reason=wait.reason)
        for wait in stats.waits
    ]
    prompt.chunks = [ChunkTrace(at_s=since_arrival(chunk.at_s), tokens=chunk.num_tokens) for chunk in stats.chunks]
    prompt.preempted = [
        PreemptionTrace(
            at_s=since_arrival(each.at_s),
            recovery=each.recovery,
            tokens=each.num_tokens,
            blocks=each.num_blocks,
            predicted_s=each.predicted_s,
            actual_s=each.actual_s,
        )
        for each in stats.preemptions
    ]
