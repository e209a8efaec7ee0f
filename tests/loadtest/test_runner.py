import dataclasses
import statistics
import time
from typing import Any

import pytest

from loadtest import runner
from loadtest.metrics import max_concurrent
from loadtest.prompts import BodyOptions
from loadtest.runner import LoadError, LoadPlan, run_load, split
from loadtest.stub_server import VOCAB_SIZE
from loadtest.trace import TraceRequest
from loadtest.workload import draw, fixed, named
from tests.loadtest.conftest import ITL_S, TTFT_S

OPTIONS = BodyOptions("stub", vocab_size=VOCAB_SIZE)


def _spaced(num: int, gap_s: float, output_len: int = 16) -> tuple[TraceRequest, ...]:
    requests = draw(fixed(8, output_len), num, seed=0)
    return tuple(dataclasses.replace(request, arrival_s=gap_s * i) for i, request in enumerate(requests))


def _median_errors(stub_url: str) -> dict[str, float]:
    """Relative errors of the medians against the stub's known timings."""
    records = run_load(LoadPlan(stub_url, _spaced(30, 0.02), OPTIONS, num_processes=2)).records
    assert all(record.succeeded for record in records)
    known_and_measured = {
        "ttft": (TTFT_S, [record.time_to_first_token_s or 0 for record in records]),
        "tpot": (ITL_S, [record.time_per_output_token_s or 0 for record in records]),
        "itl": (ITL_S, [gap for record in records for gap in record.inter_token_latencies_s]),
        "e2el": (TTFT_S + 15 * ITL_S, [record.latency_s for record in records]),
    }
    return {name: statistics.median(values) / known - 1 for name, (known, values) in known_and_measured.items()}


def test_known_timings_are_measured_within_two_per_cent(stub_url: str) -> None:
    """Each in its best try of a few, since other work on the machine delays the stub and the client alike."""
    least: dict[str, float] = {}
    for _ in range(6):
        for name, error in _median_errors(stub_url).items():
            least[name] = min(error, least.get(name, error), key=abs)
        if all(abs(error) < 0.02 for error in least.values()):
            return
    pytest.fail(f"least errors of the medians: {least}")


def test_requests_are_sent_when_they_are_due(stub_url: str) -> None:
    outcome = run_load(LoadPlan(stub_url, _spaced(20, 0.01), OPTIONS, num_processes=2))
    due = [record.scheduled_s - outcome.start_s for record in outcome.records]
    assert due == pytest.approx([0.01 * i for i in range(20)], abs=1e-9)
    assert statistics.median(record.sent_s - record.scheduled_s for record in outcome.records) < TTFT_S


def test_waiting_for_a_place_counts_as_latency(stub_url: str) -> None:
    plan = LoadPlan(stub_url, _spaced(4, 0.0), OPTIONS, max_concurrency=1)
    latencies = sorted(record.latency_s for record in run_load(plan).records)
    alone = TTFT_S + 15 * ITL_S
    assert all(latency > 0.98 * alone * (i + 1) for i, latency in enumerate(latencies))


def test_closed_loop_keeps_its_number_of_clients_busy(stub_url: str) -> None:
    plan = LoadPlan(stub_url, _spaced(15, 0.0), OPTIONS, closed_loop=True, max_concurrency=5, num_processes=2)
    outcome = run_load(plan)
    assert [record.request_id for record in outcome.records] == list(range(15))
    assert max_concurrent((r.sent_s, r.end_s) for r in outcome.records) == 5
    latency = statistics.median(record.latency_s for record in outcome.records)
    assert latency < 2 * (TTFT_S + 15 * ITL_S), "who waits for its turn has not been sent"


@pytest.mark.parametrize("with_ids", [False, True])
def test_conversations_grow_by_prompt_and_answer(fast_stub_url: str, with_ids: bool) -> None:
    requests = [
        dataclasses.replace(request, think_time_s=min(request.think_time_s, 0.01))
        for request in draw(named("multi-turn"), 20, seed=0)
    ]
    options = dataclasses.replace(OPTIONS, return_token_ids=with_ids)
    records = run_load(LoadPlan(fast_stub_url, tuple(requests), options, num_processes=2)).records
    expected = 0
    for request, record in zip(requests, records, strict=True):
        expected = (expected if request.turn else 0) + request.prompt_len
        assert record.input_tokens == expected
        expected += request.output_len


class Moments:
    """When this context was entered, and left."""

    entered_s = left_s = 0.0

    def __enter__(self) -> None:
        self.entered_s = time.perf_counter()

    def __exit__(self, *fault: object) -> None:
        self.left_s = time.perf_counter()


def test_what_is_put_around_a_run_sees_no_warm_up(fast_stub_url: str) -> None:
    around = Moments()
    began_s = time.perf_counter()
    outcome = run_load(LoadPlan(fast_stub_url, _spaced(3, 0.0), OPTIONS, warmup_requests=20), around=around)
    assert began_s < around.entered_s < outcome.start_s < outcome.start_s + outcome.duration_s < around.left_s
    assert around.entered_s - began_s > outcome.duration_s, "twenty requests, one after the other"


def test_turns_after_a_failed_one_are_skipped_and_named(fast_stub_url: str) -> None:
    requests = tuple(TraceRequest(i, prompt_len=4, conversation_id=0, turn=i) for i in range(3))
    options = dataclasses.replace(OPTIONS, model="stub-503")
    records = run_load(LoadPlan(fast_stub_url, requests, options, warmup_requests=0)).records
    assert [record.error_kind for record in records] == ["http_503", "skipped", "skipped"]


def test_failed_requests_do_not_stop_the_run(fast_stub_url: str) -> None:
    options = dataclasses.replace(OPTIONS, model="stub-disconnect")
    records = run_load(LoadPlan(fast_stub_url, _spaced(6, 0.0), options, warmup_requests=0)).records
    assert [record.error_kind for record in records] == ["disconnected_mid_stream"] * 6


def test_failed_warmup_is_an_error(fast_stub_url: str) -> None:
    plan = LoadPlan(fast_stub_url, _spaced(2, 0.0), dataclasses.replace(OPTIONS, model="stub-503"))
    with pytest.raises(LoadError, match="http_503"):
        run_load(plan)


def test_if_one_client_does_not_start_the_others_end(fast_stub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = runner._start_client, []

    def start_the_first(context: Any, index: int, *rest: Any) -> Any:
        if index:
            raise OSError("no more processes")
        started.append(start(context, index, *rest))
        return started[0]

    monkeypatch.setattr(runner, "_start_client", start_the_first)
    with pytest.raises(OSError, match="no more processes"):
        run_load(LoadPlan(fast_stub_url, _spaced(4, 0.0), OPTIONS, num_processes=2))
    assert not started[0].process.is_alive()


def test_progress_reaches_the_end(fast_stub_url: str) -> None:
    seen: list[int] = []
    run_load(LoadPlan(fast_stub_url, _spaced(5, 0.0), OPTIONS), seen.append)
    assert seen[-1] == 5


def test_split_gives_every_request_to_one_process_and_keeps_conversations_whole() -> None:
    plan = LoadPlan("http://x", tuple(draw(named("multi-turn"), 50, seed=0)), OPTIONS, num_processes=3)
    shares = split(plan)
    ids = [request.request_id for share in shares for stream in share.streams for request in stream]
    assert sorted(ids) == list(range(50))
    assert all(len({r.conversation_id for r in stream}) == 1 for share in shares for stream in share.streams)


@pytest.mark.parametrize(("limit", "expected"), [(1, [1]), (2, [1, 1]), (7, [3, 2, 2])])
def test_split_divides_the_limit_on_concurrency(limit: int, expected: list[int]) -> None:
    plan = LoadPlan("http://x", _spaced(10, 1.0), OPTIONS, max_concurrency=limit, num_processes=3)
    assert [share.max_concurrency for share in split(plan)] == expected


def test_bad_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        LoadPlan("http://x", (), OPTIONS)
    with pytest.raises(ValueError, match="closed loop"):
        LoadPlan("http://x", _spaced(1, 0.0), OPTIONS, closed_loop=True)
    with pytest.raises(ValueError, match="num_processes"):
        LoadPlan("http://x", _spaced(1, 0.0), OPTIONS, num_processes=0)
