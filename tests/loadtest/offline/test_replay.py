from dataclasses import replace

import pytest

from loadtest.offline.replay import offline_requests, replay
from loadtest.offline.serving_system import Completion, IterationFacts, OfflineRequest
from loadtest.offline.work_clock import WorkClock
from loadtest.workload import draw, fixed

SERVICE_S = 2.0


class OneAtATime:
    """A server of one seat with a known service time."""

    name = "one at a time"

    def __init__(self, loses: bool = False) -> None:
        self._seconds = 0.0
        self.clock = WorkClock(lambda: self._seconds)
        self._loses = loses
        self._queue: list[OfflineRequest] = []
        self._done: list[Completion] = []
        self.submitted_at: list[float] = []
        self.is_closed = False

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def submit(self, request: OfflineRequest) -> None:
        assert request.arrival_s <= self.clock.now_s(), "not before it is due"
        self.submitted_at.append(self.clock.now_s())
        self._queue.append(request)

    def step(self) -> None:
        request = self._queue.pop(0)
        started = self.clock.now_s()
        self._seconds += SERVICE_S
        if not self._loses:
            self._done.append(Completion(request.request_id, request.arrival_s, started, self.clock.now_s(), 1))

    def take_completions(self) -> list[Completion]:
        taken, self._done = self._done, []
        return taken

    def facts(self) -> IterationFacts:
        return IterationFacts(1, len(self._queue), 0.0)

    def close(self) -> None:
        self.is_closed = True


def requests(*arrivals: float) -> list[OfflineRequest]:
    return [OfflineRequest(i, arrival, (5,), 1) for i, arrival in enumerate(arrivals)]


def test_waits_as_a_queue_of_one_seat_does_and_skips_idleness() -> None:
    system = OneAtATime()
    outcome = replay(system, requests(0.0, 1.0, 100.0))
    assert [c.latency_s for c in outcome.completions] == [2.0, 3.0, 2.0]
    assert [c.weighted_turnaround for c in outcome.completions] == [1.0, 1.5, 1.0]
    assert system.clock.now_s() == 102.0
    assert [i.seconds for i in outcome.iterations] == [SERVICE_S] * 3
    assert system.is_closed


def test_an_arrival_during_an_iteration_is_submitted_after_it() -> None:
    system = OneAtATime()
    replay(system, requests(0.0, 1.0))
    assert system.submitted_at == [0.0, 2.0]


def test_begins_now_on_a_clock_that_has_run() -> None:
    system = OneAtATime()
    system.clock.skip_to(50.0)
    (only,) = replay(system, requests(7.0)).completions
    assert (only.arrival_s, only.finished_s) == (50.0, 52.0)


def test_a_lost_request_is_an_error_and_the_system_is_closed() -> None:
    system = OneAtATime(loses=True)
    with pytest.raises(RuntimeError, match="1 requests, 0 answers"):
        replay(system, requests(0.0))
    assert system.is_closed


def test_ends_when_the_share_has_ended() -> None:
    system = OneAtATime()
    outcome = replay(system, requests(0.0, 0.0, 0.0, 0.0), share=0.6)
    assert len(outcome.completions) == 3
    assert system.is_closed


def test_prompts_have_the_traces_lengths() -> None:
    trace = [replace(request, arrival_s=0.5) for request in draw(fixed(9, 4), 3, seed=0)]
    made = offline_requests(trace, vocab_size=100)
    assert [(len(r.prompt_token_ids), r.output_len, r.arrival_s) for r in made] == [(9, 4, 0.5)] * 3
    assert len({r.prompt_token_ids for r in made}) == 3
