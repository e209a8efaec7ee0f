"""Figures of merit of a replay, as the papers define them. Times in seconds, lengths in tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from loadtest.offline.serving_system import IterationFacts, ReplayOutcome


def request_throughput(outcome: ReplayOutcome) -> float:
    """Requests per second, from the first arrival to the last completion."""
    return len(outcome.completions) / _duration_s(outcome)


def output_throughput(outcome: ReplayOutcome) -> float:
    """Output tokens per second, over the same time."""
    return sum(completion.num_output_tokens for completion in outcome.completions) / _duration_s(outcome)


def mean_normalized_latency_s(outcome: ReplayOutcome) -> float:
    """PagedAttention's figure (section 6.1)."""
    return fmean(completion.normalized_latency_s for completion in outcome.completions)


def median_normalized_latency_s(outcome: ReplayOutcome) -> float:
    """ORCA's figure (section 6.2)."""
    return median(completion.normalized_latency_s for completion in outcome.completions)


def median_latency_s(outcome: ReplayOutcome) -> float:
    """ORCA's figure for equal requests (figure 11)."""
    return median(completion.latency_s for completion in outcome.completions)


def mean_weighted_turnaround(outcome: ReplayOutcome) -> float:
    """AdaptiveLLM's figure (equation 5)."""
    return fmean(completion.weighted_turnaround for completion in outcome.completions)


def mean_batch_size(outcome: ReplayOutcome) -> float:
    """Sequences per iteration under full load, that is while requests wait. If none ever waits, over all iterations."""
    return fmean(iteration.batch_size for iteration in _under_full_load(outcome.iterations))


def percentile(values: Sequence[float], share: float) -> float:
    """The lowest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]


def num_preemptions(outcome: ReplayOutcome) -> int:
    """Sum over all requests."""
    return sum(completion.num_preemptions for completion in outcome.completions)


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Shares, as means over the iterations under full load. Of held memory: what has a token's state. Of all memory:
    what is held. Of the blocks in tables: what sharing saves.
    """

    token_state: float
    held: float
    saved: float


def memory_shares(outcome: ReplayOutcome) -> MemoryShares:
    """Raises ValueError if the system does not report its memory."""
    known = [
        iteration.memory
        for iteration in _under_full_load(outcome.iterations)
        if iteration.memory is not None and iteration.memory.held
    ]
    if not known:
        raise ValueError(f"{outcome.system} does not report its memory")
    held = sum(memory.held for memory in known)
    return MemoryShares(
        token_state=sum(memory.token_state for memory in known) / held,
        held=held / sum(memory.total for memory in known),
        saved=1 - held / max(held, sum(memory.unshared for memory in known)),
    )


def _under_full_load(iterations: Sequence[IterationFacts]) -> list[IterationFacts]:
    """Iterations during which requests waited."""
    computing = [iteration for iteration in iterations if iteration.batch_size]
    return [iteration for iteration in computing if iteration.num_waiting] or computing


def _duration_s(outcome: ReplayOutcome) -> float:
    first = min(completion.arrival_s for completion in outcome.completions)
    return max(completion.finished_s for completion in outcome.completions) - first
