"""Interface of every compared system: requests in, iterations on demand, completions and memory facts out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.offline.work_clock import WorkClock


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request of a replayed trace. output_len: the real length of each of its answers.

    A system that knows only a limit reserves by that limit and learns the length when the answer ends. With a
    `beam_width` the answers are beams instead of samples; a system without beam search ignores it.
    """

    request_id: int
    arrival_s: float
    prompt_token_ids: tuple[int, ...]
    output_len: int
    n: int = 1
    beam_width: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """What happened to a request, in seconds on the replay's clock. num_output_tokens: of all its answers together.

    first_token_s: None if the system does not report it.
    """

    request_id: int
    arrival_s: float
    first_scheduled_s: float
    finished_s: float
    num_output_tokens: int
    num_preemptions: int = 0
    first_token_s: float | None = None

    @property
    def time_to_first_token_s(self) -> float:
        """From the arrival. Only if the system reports first_token_s."""
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def time_per_output_token_s(self) -> float:
        """Seconds between tokens, for a request with one answer. Only if the system reports first_token_s."""
        assert self.first_token_s is not None
        return (self.finished_s - self.first_token_s) / max(1, self.num_output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """From the arrival to the end of the answer."""
        return self.finished_s - self.arrival_s

    @property
    def normalized_latency_s(self) -> float:
        """Latency / output tokens (ORCA, section 6.2)."""
        return self.latency_s / self.num_output_tokens

    @property
    def weighted_turnaround(self) -> float:
        """(finish - sent) / (finish - first scheduled); 1: it did not wait (AdaptiveLLM, equation 5)."""
        return self.latency_s / (self.finished_s - self.first_scheduled_s)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """KV memory after an iteration, in tokens: with a token's state, held by running requests, total.

    unshared: tokens in all block tables, where a shared block counts once per table.
    """

    token_state: int
    held: int
    total: int
    unshared: int


@dataclass(frozen=True, slots=True)
class IterationFacts:
    """One iteration: number of sequences, requests waiting after it, seconds, memory (None: unknown)."""

    batch_size: int
    num_waiting: int
    seconds: float
    memory: MemoryUse | None = None


class ServingSystem(Protocol):
    """Driven by `replay.py`, which submits arrived requests and calls `step` while there is work."""

    @property
    def name(self) -> str:
        """The name in figures' legends."""
        ...

    @property
    def clock(self) -> WorkClock:
        """Measures how long the system's work takes. It runs while `step` is called."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def submit(self, request: OfflineRequest) -> None:
        """Call when the request arrives."""
        ...

    def step(self) -> None:
        """Run one iteration; for a system without iterations, one batch."""
        ...

    def take_completions(self) -> list[Completion]:
        """Requests that have ended since the last call."""
        ...

    def facts(self) -> IterationFacts:
        """Facts about the last step. Its seconds are 0 here: the replay measures them."""
        ...

    def close(self) -> None:
        """Leave the shared executor as it was before."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The result of a replay: completions by request id, iterations by time."""

    system: str
    completions: Sequence[Completion]
    iterations: Sequence[IterationFacts] = field(default_factory=tuple)
