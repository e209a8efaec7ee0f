"""Mixed requests through the engine's loop, which the test runs itself: no thread, no waiting.

Requests of every kind meet in a cache too small for them, so that they preempt each other both ways. One client leaves,
one choice's text is complete, one request has waited too long, and one comes when all have ended: the canary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from service.core.events import FinalEvent, Outcome
from service.core.request import Request
from service.core.sequence_group import SequenceGroup
from service.engine.commands import Abort, Expire, Stop, StopChoice, Submit
from service.engine.engine_loop import EngineLoop
from service.engine.outbox import News, one_by_one
from service.engine.ports import Executor
from service.errors import Overloaded, Unavailable
from service.prediction.preemption_cost import Recovery, RecoveryCosts
from service.structured.token_bitmask import TokenBitmask
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import Harness
from tests.engine.toy_model import ToyExecutor
from tests.manual_clock import ManualClock
from tests.structured.tiny_grammars import END_ID, TOKENIZER, regex

VOCAB_SIZE = TOKENIZER.num_tokens
NUM_BLOCKS = 14
BLOCK_SIZE = 4
MAX_NUM_SEQS = 8
NUM_HOST_BLOCKS = 16
LEAVING, COMPLETE, LATE = "request-2", "request-3", "request-8"
ENDED_FROM_OUTSIDE = frozenset({LEAVING, COMPLETE, LATE})
FIRST, CANARY = "request-0", "request-11"
NUM_FIRST, NUM_REQUESTS = 6, 11
_PROMPT = (5, 6, 7, 8, 9, 10, 11, 12, 13)
_MOST_CLOCK_READS = 50_000
_ASKING: dict[str, Any] = {
    "presence_penalty": 0.5,
    "bad_words": ((1, 2), (3,)),
    "min_tokens": 3,
    "logit_bias": ((7, 0.5),),
    "allowed_token_ids": tuple(range(200)),
}
_GRAMMAR = regex("[a-z]{3}[0-9]{2}")


class InTurn:
    """Swaps one preempted group, recomputes the next one, and so on."""

    def __init__(self) -> None:
        self._swaps = False

    def choose(self, group: SequenceGroup, costs: RecoveryCosts) -> Recovery:
        self._swaps = not self._swaps
        return Recovery.SWAP if self._swaps else Recovery.RECOMPUTE


class NothingLeftToDo:
    """The engine's idle work. Fails when called: the engine would have nothing to do although the scene is not over."""

    def do_some(self) -> bool:
        raise AssertionError("the engine rests, and somebody waits for an end")

    def is_missed(self) -> bool:
        return False

    def is_urgent(self) -> bool:
        return False


class BoundedClock(ManualClock):
    """Advances a little at each read. More reads than a scene can need mean an endless loop."""

    def __init__(self) -> None:
        super().__init__()
        self._num_reads = 0

    def now_s(self) -> float:
        self._num_reads += 1
        assert self._num_reads < _MOST_CLOCK_READS, "the engine does not come to an end"
        self.advance(1e-4)
        return super().now_s()


@dataclass
class Ending:
    """The result of a scene. tokens: by request and choice."""

    finals: dict[str, FinalEvent]
    tokens: dict[tuple[str, int], list[int]]
    logprobs: dict[tuple[str, int], list[float]]
    deaths: list[BaseException] = field(default_factory=list)

    def failed(self) -> set[str]:
        """Requests that ended because of a server fault."""
        ours = {r for r, final in self.finals.items() if final.outcome is Outcome.FAILED}
        return ours - {LATE}


class EngineScene:
    """executor: None: the toy model, with adapters. overlap: as in `Engine`."""

    def __init__(self, overlap: bool, executor: Executor | None = None, temperature: float = 1.0) -> None:
        self.clock = BoundedClock()
        self.harness = Harness(
            NUM_BLOCKS,
            BLOCK_SIZE,
            MAX_NUM_SEQS,
            max_num_batched_tokens=20,
            executor=executor or _toy(),
            preemption=InTurn(),
            num_host_blocks=NUM_HOST_BLOCKS,
            num_adapter_slots=1,
            overlap=overlap,
            masker=TokenBitmask(MAX_NUM_SEQS, VOCAB_SIZE, frozenset({END_ID})),
            idle_work=NothingLeftToDo(),
            clock=self.clock,
        )
        self._temperature = temperature
        self._has_adapters = executor is None
        self._deaths: list[BaseException] = []
        self._loop = EngineLoop(
            self.harness.engine, self.clock, self._publish, self._deaths.append, wait=lambda event, _: event.is_set()
        )
        self._requests = self._make_requests()
        self._is_second_half = self._is_over = False

    def play(self) -> Ending:
        """Play all of it, on this thread."""
        for request in self._requests[:NUM_FIRST]:
            self._loop.send(Submit(request))
        self._loop._run()
        harness = self.harness
        logprobs = {key: [each.chosen for each in entries] for key, entries in harness.logprobs.items()}
        return Ending(dict(harness.finals), dict(harness.tokens), logprobs, self._deaths)

    def check_books(self) -> None:
        """Nothing is left of any request, and one more runs, with every invariant checked after each step."""
        self.harness.check_books()

    def _publish(self, events: list[News]) -> None:
        harness = self.harness
        harness.take_in(one_by_one(events))
        if not self._is_second_half and (len(harness.tokens[FIRST, 0]) > 2 or FIRST in harness.finals):
            self._is_second_half = True
            for request in self._requests[NUM_FIRST:]:
                self._loop.send(Submit(request))
            self._loop.send(Expire(LATE, Overloaded("too late", retry_after_s=1.0)))
            self._loop.send(Abort(LEAVING))
            self._loop.send(StopChoice(COMPLETE, 1))
        if len(harness.finals) == NUM_REQUESTS and CANARY not in harness.requests:
            self._loop.send(Submit(self._canary()))
        if CANARY in harness.finals and not self._is_over:
            self._is_over = True
            self._loop.send(Stop(Unavailable("the scene is over")))

    def _make_requests(self) -> list[Request]:
        """NUM_REQUESTS of them."""
        harness, warm = self.harness, {"temperature": self._temperature}
        poet, clerk = (harness.adapter(1), harness.adapter(2)) if self._has_adapters else (None, None)
        made = [
            harness.request(_PROMPT, 8, **warm),
            harness.request(_PROMPT, 6, n=2, seed=3, **warm),
            harness.request((9, 9), 20, seed=5, **warm),
            harness.request((40, 41), 16, n=2, seed=6, **warm),
            harness.request((5, 6, 7), 24, seed=6, stops=frozenset(range(0, VOCAB_SIZE, 12)), adapter=poet, **warm),
            harness.request(_PROMPT[:6], 5, num_logprobs=1, num_prompt_logprobs=1, **warm),
            self._constrained(harness.request((50, 51, 52), 8, n=2, stops=frozenset({END_ID}), **warm)),
            harness.beam_request(_PROMPT[:5], 4, width=3, n=2),
            harness.request((60, 61), 4, **warm),
            harness.request((*_PROMPT[:8], 20), 9, seed=9, adapter=clerk, **warm, **_ASKING),
            harness.request((*_PROMPT[:8], 21), 0, num_prompt_logprobs=0, salt="other", **warm),
        ]
        assert [made[number].request_id for number in (2, 3, 8)] == [LEAVING, COMPLETE, LATE]
        assert len(made) == NUM_REQUESTS
        return made

    def _constrained(self, request: Request) -> Request:
        constrained = replace(request, grammar=_GRAMMAR)
        self.harness.requests[request.request_id] = constrained
        return constrained

    def _canary(self) -> Request:
        """The first request again."""
        canary = self.harness.request(_PROMPT, 8, temperature=self._temperature)
        assert canary.request_id == CANARY
        return canary


def _toy() -> ToyExecutor:
    """Its transfers take an iteration longer than necessary."""
    return FaultyExecutor(
        frozenset(), num_blocks=NUM_BLOCKS, transfer_delay=1, block_size=BLOCK_SIZE, vocabulary=VOCAB_SIZE
    )


def check_undisturbed(ending: Ending, golden: Ending, spared: frozenset[str] | set[str]) -> None:
    """All requests but the `spared` have exactly the golden tokens; the spared have a beginning of theirs."""
    for request_id in golden.finals:
        is_whole = request_id in ending.finals and request_id not in spared | ENDED_FROM_OUTSIDE
        if is_whole:
            assert ending.finals[request_id].outcome is Outcome.FINISHED, request_id
    for (request_id, choice), expected in golden.tokens.items():
        got = ending.tokens.get((request_id, choice), [])
        is_whole = request_id in ending.finals and request_id not in spared | ENDED_FROM_OUTSIDE
        if is_whole:
            assert got == expected, (request_id, choice)
            logprobs = golden.logprobs.get((request_id, choice))
            assert ending.logprobs.get((request_id, choice)) == pytest.approx(logprobs, abs=1e-5)
        else:
            together = min(len(got), len(expected))
            assert got[:together] == expected[:together], (request_id, choice)


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silences the log of a thousand faults."""
    monkeypatch.setattr("logging.Logger.handle", lambda self, record: None)
