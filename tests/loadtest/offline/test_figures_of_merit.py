import pytest

from loadtest.offline.figures_of_merit import (
    mean_batch_size,
    mean_normalized_latency_s,
    mean_weighted_turnaround,
    median_latency_s,
    median_normalized_latency_s,
    memory_shares,
    num_preemptions,
    output_throughput,
    request_throughput,
)
from loadtest.offline.serving_system import Completion, IterationFacts, MemoryUse, ReplayOutcome

COMPLETIONS = (
    Completion(0, arrival_s=1.0, first_scheduled_s=1.0, finished_s=3.0, num_output_tokens=4, num_preemptions=1),
    Completion(1, arrival_s=1.0, first_scheduled_s=3.0, finished_s=5.0, num_output_tokens=2),
    Completion(2, arrival_s=2.0, first_scheduled_s=5.0, finished_s=6.0, num_output_tokens=1, num_preemptions=2),
)


def test_figures_of_requests() -> None:
    outcome = ReplayOutcome("any", COMPLETIONS)
    assert request_throughput(outcome) == 3 / 5
    assert output_throughput(outcome) == 7 / 5
    assert mean_normalized_latency_s(outcome) == pytest.approx((0.5 + 2 + 4) / 3)
    assert median_normalized_latency_s(outcome) == 2
    assert median_latency_s(outcome) == 4
    assert mean_weighted_turnaround(outcome) == pytest.approx((2 / 2 + 4 / 2 + 4 / 1) / 3)
    assert num_preemptions(outcome) == 3


def test_batches_count_while_requests_wait() -> None:
    iterations = [IterationFacts(4, 2, 1.0), IterationFacts(6, 1, 1.0), IterationFacts(1, 0, 1.0)]
    assert mean_batch_size(ReplayOutcome("any", COMPLETIONS, iterations)) == 5
    assert mean_batch_size(ReplayOutcome("any", COMPLETIONS, iterations[2:])) == 1


def test_memory_shares() -> None:
    iterations = [
        IterationFacts(1, 1, 1.0, MemoryUse(token_state=30, held=40, total=100, unshared=50)),
        IterationFacts(1, 1, 1.0, MemoryUse(token_state=60, held=60, total=100, unshared=75)),
    ]
    shares = memory_shares(ReplayOutcome("any", COMPLETIONS, iterations))
    assert (shares.token_state, shares.held, shares.saved) == pytest.approx((0.9, 0.5, 0.2))
    with pytest.raises(ValueError, match="any does not report"):
        memory_shares(ReplayOutcome("any", COMPLETIONS, [IterationFacts(1, 1, 1.0)]))
