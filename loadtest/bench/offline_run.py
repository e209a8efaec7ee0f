"""Runs requests through the engine without HTTP, all at once, and records when their tokens came."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.core.events import FinalEvent, Outcome
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.engine.engine import Engine
from service.engine.outbox import one_by_one
from service.errors import ServerError


@dataclass(slots=True)
class OfflineRun:
    """Times in seconds on one clock. ticks: (time, number of tokens) of each iteration that returned any.

    first_s, last_s: time of each request's first and last token.
    """

    started_s: float
    ticks: list[tuple[float, int]] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.ticks[-1][0] - self.started_s

    def steps_of(self, num_tokens: int) -> list[float]:
        """Seconds of each iteration that returned exactly `num_tokens` tokens after one that also did."""
        pairs = zip(self.ticks, self.ticks[1:], strict=False)
        return [end - start for (start, before), (end, here) in pairs if before == here == num_tokens]


def greedy_requests(lengths: Sequence[tuple[int, int]], vocab_size: int, seed: int) -> list[Request]:
    """Greedy requests with random prompts. lengths: (prompt, output) tokens; end-of-sequence tokens are ignored."""
    chance = random.Random(seed)
    return [
        Request(
            request_id=f"bench-{seed}-{number}",
            prompt_token_ids=tuple(chance.choices(range(vocab_size), k=prompt)),
            sampling=SamplingParams(max_tokens=output, temperature=0.0),
            arrival_s=0.0,
        )
        for number, (prompt, output) in enumerate(lengths)
    ]


def run_at_once(
    engine: Engine, requests: Sequence[Request], now_s: Callable[[], float] = time.perf_counter
) -> OfflineRun:
    """Add all requests and step until none is left. Raises ServerError if a request fails."""
    run = OfflineRun(now_s())
    for request in requests:
        engine.requests.add(request)
    while engine.has_work:
        engine.step()
        _record(run, engine, now_s)
    return run


def _record(run: OfflineRun, engine: Engine, now_s: Callable[[], float]) -> None:
    events = engine.requests.events.take()
    here_s, num_tokens = now_s(), 0
    for request_id, event in one_by_one(events):
        if not isinstance(event, FinalEvent):
            num_tokens += 1
            run.first_s.setdefault(request_id, here_s)
            run.last_s[request_id] = here_s
        elif event.outcome is not Outcome.FINISHED:
            raise event.error or ServerError(f"request {request_id} was {event.outcome}")
    if num_tokens:
        run.ticks.append((here_s, num_tokens))
