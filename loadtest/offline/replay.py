"""The load loop of all offline scenarios: replays a trace against a system, iteration by iteration.

Open loop: a request is submitted at its arrival time, whatever the system does. Single-threaded and without HTTP, so
two replays of a trace differ only by how long the iterations took.
"""

import dataclasses
import math
from collections.abc import Sequence

from loadtest.offline.serving_system import Completion, IterationFacts, OfflineRequest, ReplayOutcome, ServingSystem
from loadtest.prompts import BodyOptions, prompt_token_ids
from loadtest.trace import TraceRequest


def offline_requests(trace: Sequence[TraceRequest], vocab_size: int) -> list[OfflineRequest]:
    """The trace with prompt ids, the same that the HTTP generator would send."""
    options = BodyOptions("", vocab_size=vocab_size)
    return [
        OfflineRequest(
            request.request_id, request.arrival_s, tuple(prompt_token_ids(request, options)), request.output_len
        )
        for request in trace
    ]


def replay(system: ServingSystem, requests: Sequence[OfflineRequest], share: float = 1.0) -> ReplayOutcome:
    """Run the trace until this share of its requests has ended; the first arrives now.

    A share below 1 leaves out the time in which a full system drains. Raises RuntimeError if a request is lost.
    """
    clock = system.clock
    start_s = clock.now_s() - min(request.arrival_s for request in requests)
    due = sorted(
        (dataclasses.replace(request, arrival_s=start_s + request.arrival_s) for request in requests),
        key=lambda request: request.arrival_s,
    )
    completions: list[Completion] = []
    iterations: list[IterationFacts] = []
    num_submitted = 0
    num_wanted = math.ceil(share * len(due))
    try:
        while len(completions) < num_wanted and (num_submitted < len(due) or system.has_work):
            if not system.has_work:
                clock.skip_to(due[num_submitted].arrival_s)
            while num_submitted < len(due) and due[num_submitted].arrival_s <= clock.now_s():
                system.submit(due[num_submitted])
                num_submitted += 1
            iterations.append(_step(system))
            completions += system.take_completions()
    finally:
        system.close()
    if len(completions) < num_wanted:
        raise RuntimeError(f"{system.name}: {len(due)} requests, {len(completions)} answers")
    completions.sort(key=lambda completion: completion.request_id)
    return ReplayOutcome(system.name, completions, iterations)


def _step(system: ServingSystem) -> IterationFacts:
    before_s = system.clock.now_s()
    with system.clock.working():
        system.step()
    return dataclasses.replace(system.facts(), seconds=system.clock.now_s() - before_s)
