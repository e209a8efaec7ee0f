"""The event loop's queue to the engine's thread: commands not taken yet, and counters from which any thread can compute
how many requests have not started, without a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from service.core.request import Request
from service.core.stats import EngineSnapshot
from service.core.training import TrainingInterrupted
from service.engine.commands import Command, StartTraining, Submit
from service.engine.live_training import tell_end


class Queued(NamedTuple):
    """Requests that have not started, and the tokens that they have to compute. distinct_tokens: the same, but a prefix
    that several prompts share counts once; prompts still in the inbox count in full."""

    requests: int
    tokens: int
    distinct_tokens: int


class Amount(NamedTuple):
    """A number of requests, and of their prompt tokens."""

    requests: int = 0
    tokens: int = 0

    def with_one_more(self, request: Request) -> Amount:
        return Amount(self.requests + 1, self.tokens + request.num_prompt_tokens)


class Known(NamedTuple):
    """What other threads know of the engine. One object, replaced as a whole, so that a request that moves from the
    inbox to the engine is always counted in exactly one of the two.

    taken: requests taken from the inbox so far; `snapshot` includes all of these.
    """

    snapshot: EngineSnapshot
    taken: Amount

    def queued(self, sent: Amount) -> Queued:
        """Requests that have not started. sent: all that were put into the inbox so far."""
        num_tokens_sent = sent.tokens - self.taken.tokens
        return Queued(
            self.snapshot.num_waiting + sent.requests - self.taken.requests,
            self.snapshot.waiting_tokens + num_tokens_sent,
            self.snapshot.distinct_waiting_tokens + num_tokens_sent,
        )


class Inbox:
    """The event loop calls `send`, the engine's thread all other methods.

    commands: not taken yet. sent, taken: number of requests sent and taken so far.
    """

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        self.sent = self.taken = Amount()
        self._is_closed = False

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Submit):  # counted after the append, since the thread may launch for it at once
            self.sent = self.sent.with_one_more(command.request)
        if self._is_closed:
            self._refuse_trainings()

    def take(self) -> Iterator[Command]:
        """Yield the commands, also those that arrive meanwhile. One counts as taken when the next is asked for."""
        while self.commands:
            command = self.commands.popleft()
            yield command
            if isinstance(command, Submit):
                self.taken = self.taken.with_one_more(command.request)

    def close(self) -> None:
        """The thread has ended. Trainings that were still to start, now or later, are reported as interrupted."""
        self._is_closed = True
        self._refuse_trainings()

    def _refuse_trainings(self) -> None:
        """Tell the listeners of all StartTraining commands. May run on both threads at once: one of them pops each."""
        while self.commands:
            try:
                command = self.commands.popleft()
            except IndexError:  # the other thread popped it
                return
            if isinstance(command, StartTraining):
                tell_end(command.listener, TrainingInterrupted("the engine has ended"))
