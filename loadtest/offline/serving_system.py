"""What every compared system is: requests in, iterations by hand, completions and facts of memory out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.offline.work_clock import WorkClock


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request of a replayed trace; `output_len` is how long each of its answers really becomes.

    A system that knows only a limit reserves by that limit and learns the length when the answer ends. With a
    `beam_width` the answers are beams instead of draws; a system that has none ignores it.
    """

    request_id: int
    arrival_s: float
    prompt_token_ids: tuple[int, ...]
    output_len: int
    n: int = 1
    beam_width: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """How a request went, in seconds on the replay's clock; `num_output_tokens` counts all of its answers.

    first_token_s: None for a system that does not tell.
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
        """From arrival. Of a system that tells."""
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def time_per_output_token_s(self) -> float:
        """Between the first token and the last, of one answer. Of a system that tells."""
        assert self.first_token_s is not None
        return (self.finished_s - self.first_token_s) / max(1, self.num_output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """From arrival to the answer's end."""
        return self.finished_s - self.arrival_s

    @property
    def normalized_latency_s(self) -> float:
        """Latency / output tokens (ORCA, section 6.2)."""
        return self.latency_s / self.num_output_tokens

    @property
    def weighted_turnaround(self) -> float:
        """(finish - sent) / (finish - first scheduled): 1 is no waiting (AdaptiveLLM, equation 5)."""
        return self.latency_s / (self.finished_s - self.first_scheduled_s)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """KV memory after an iteration, in tokens: holding a token's state, set aside by the system, in all.

    unshared: what the block tables point to, a block counted as often as it is shared.
    """

    token_state: int
    held: int
    total: int
    unshared: int


@dataclass(frozen=True, slots=True)
class IterationFacts:
    """One iteration: sequences computed, requests waiting after it, its seconds, and memory where it is known."""

    batch_size: int
    num_waiting: int
    seconds: float
    memory: MemoryUse | None = None


class ServingSystem(Protocol):
    """Driven by `replay.py`: submit what has arrived, step while there is work."""

    @property
    def name(self) -> str:
        """As in the figures' legends."""
        ...

    @property
    def clock(self) -> WorkClock:
        """Tells what its work takes; `step` is called while it runs."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        ...

    def submit(self, request: OfflineRequest) -> None:
        """The request has arrived."""
        ...

    def step(self) -> None:
        """One iteration, or for a system without iterations one batch."""
        ...

    def take_completions(self) -> list[Completion]:
        """Requests that have ended since the last call."""
        ...

    def facts(self) -> IterationFacts:
        """Of the last step; its seconds are 0 (the replay measures them)."""
        ...

    def close(self) -> None:
        """Leave the shared executor as it was found."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What a replay gives: completions in order of request id, iterations in order of time."""

    system: str
    completions: Sequence[Completion]
    iterations: Sequence[IterationFacts] = field(default_factory=tuple)
