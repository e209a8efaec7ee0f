"""What the event loop has sent to the engine's thread: commands that are not taken, and how much has not started, which
any thread counts without a lock."""

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
    """Requests that have not started, and tokens of theirs to compute. distinct_tokens: those of a beginning that
    several prompts share counted once, but for prompts that the thread has not taken yet."""

    requests: int
    tokens: int
    distinct_tokens: int


class Amount(NamedTuple):
    """A number of requests and of prompt tokens."""

    requests: int = 0
    tokens: int = 0

    def with_one_more(self, request: Request) -> Amount:
        return Amount(self.requests + 1, self.tokens + request.num_prompt_tokens)


class Known(NamedTuple):
    """What other threads know of the engine: one object, replaced whole, so that no request is missing from both.

    taken: of the inbox so far, all of which the snapshot tells of.
    """

    snapshot: EngineSnapshot
    taken: Amount

    def queued(self, sent: Amount) -> Queued:
        """What has not started. sent: to the inbox so far."""
        num_tokens_sent = sent.tokens - self.taken.tokens
        return Queued(
            self.snapshot.num_waiting + sent.requests - self.taken.requests,
            self.snapshot.waiting_tokens + num_tokens_sent,
            self.snapshot.distinct_waiting_tokens + num_tokens_sent,
        )


class Inbox:
    """`send` is the event loop's, all else the engine's thread's.

    commands: that are not taken. sent, taken: requests so far.
    """

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        self.sent = self.taken = Amount()
        self._is_closed = False

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Submit):  # counted once it can be taken: the thread may launch for it at once
            self.sent = self.sent.with_one_more(command.request)
        if self._is_closed:
            self._refuse_trainings()

    def take(self) -> Iterator[Command]:
        """What has come in, and what comes meanwhile; each is taken once the next one is asked for."""
        while self.commands:
            command = self.commands.popleft()
            yield command
            if isinstance(command, Submit):
                self.taken = self.taken.with_one_more(command.request)

    def close(self) -> None:
        """Nobody takes anything any more: the listener of every training that was to start hears of it."""
        self._is_closed = True
        self._refuse_trainings()

    def _refuse_trainings(self) -> None:
        """Whoever takes a command, the engine's thread or the one that sent it, tells."""
        while self.commands:
            try:
                command = self.commands.popleft()
            except IndexError:  # the other one was faster
                return
            if isinstance(command, StartTraining):
                tell_end(command.listener, TrainingInterrupted("the engine has ended"))
