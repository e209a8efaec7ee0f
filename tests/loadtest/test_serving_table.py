import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import serving_table
from loadtest.process_cpu import CpuUse
from loadtest.prompts import prompt_token_ids
from loadtest.runner import LoadOutcome, LoadPlan, run_load
from loadtest.server_process import RunningServer
from loadtest.serving_rows import Row, Target
from loadtest.serving_table import await_graphs, host_profile, lines, markdown_table, measure
from loadtest.stub_server import VOCAB_SIZE
from service.core.host_times import HostTimes, host_table
from tests.loadtest.conftest import ITL_S, TTFT_S

ROW = Row("some", "fixed-8x5", 4, (Target("TPOT, ms", "median_tpot_ms", 40.0, 30.0, 5.0),))


def test_a_row_measures_what_the_server_does(stub_url: str) -> None:
    result = measure(stub_url, ROW, VOCAB_SIZE, num_processes=1)
    assert result["completed"] == 4
    assert result["input_throughput"] == pytest.approx(4 * 8 / result["duration"])
    assert result["median_tpot_ms"] == pytest.approx(ITL_S * 1e3, rel=0.5)
    ((name, title, ours, vllm, goal, limit, verdict),) = lines(ROW.name, ROW.targets, result)
    assert (name, title, vllm, goal, limit, verdict) == ("some", "TPOT, ms", "40", "30", "5", "met")
    assert float(ours) == pytest.approx(ITL_S * 1e3, rel=0.5)


def test_a_rate_spreads_the_requests(stub_url: str) -> None:
    result = measure(stub_url, Row("paced", "fixed-8x2", 5, (), request_rate=40.0), VOCAB_SIZE, num_processes=1)
    assert result["start_times"] == sorted(result["start_times"])
    assert result["duration"] >= result["start_times"][-1] + TTFT_S
    assert result["request_rate"] == 40.0


def test_every_row_has_prompts_of_its_own(stub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a later row would find an earlier one's in the prefix cache."""
    plans: list[LoadPlan] = []

    def recorded(plan: LoadPlan, **options: Any) -> LoadOutcome:
        plans.append(plan)
        return run_load(plan, **options)

    monkeypatch.setattr(serving_table, "run_load", recorded)
    for row in (Row("at once", "fixed-8x2", 3, ()), Row("paced", "fixed-8x2", 3, (), request_rate=100.0)):
        measure(stub_url, row, VOCAB_SIZE, num_processes=1)
    at_once, paced = ([prompt_token_ids(request, plan.options) for request in plan.requests] for plan in plans)
    assert not {tuple(ids) for ids in at_once} & {tuple(ids) for ids in paced}


def test_half_of_a_single_stream_is_streams_one_after_another(stub_url: str) -> None:
    """Of which half ask; the median of as many of both kinds is between the two."""
    single = replace(ROW, num_requests=1)
    for share, streams in ((0.0, 1), (1.0, 1), (0.5, 4)):
        result = measure(stub_url, single, VOCAB_SIZE, num_processes=2, deterministic_share=share)
        assert (result["completed"], result["max_concurrent_requests"]) == (streams, 1)


def test_a_row_that_the_prefix_cache_has_helped_is_no_figure(stub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_table, "_CACHED_AT_MOST", -1)
    with pytest.raises(RuntimeError, match="came from the prefix cache"):
        measure(stub_url, ROW, VOCAB_SIZE, num_processes=1)


def test_a_row_of_prompts_sent_again_sends_those_of_the_row_that_it_names(
    stub_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[LoadPlan] = []

    def recorded(plan: LoadPlan, **options: Any) -> LoadOutcome:
        plans.append(plan)
        return run_load(plan, **options)

    monkeypatch.setattr(serving_table, "run_load", recorded)
    monkeypatch.setattr(serving_table, "_CACHED_AT_LEAST", 0.0)
    for row in (Row("first", "fixed-8x2", 3, ()), Row("again", "fixed-8x2", 3, (), prompts_of="first")):
        measure(stub_url, row, VOCAB_SIZE, num_processes=1)
    first, again = ([prompt_token_ids(request, plan.options) for request in plan.requests] for plan in plans)
    assert first == again


def test_a_row_of_prompts_sent_again_is_no_figure_if_the_prefix_cache_has_lost_them(stub_url: str) -> None:
    with pytest.raises(RuntimeError, match="came from the prefix cache"):
        measure(stub_url, Row("again", "fixed-8x2", 3, (), prompts_of="first"), VOCAB_SIZE, num_processes=1)


def test_a_row_says_which_lengths(stub_url: str) -> None:
    one, other = (
        measure(stub_url, Row("burst", "alpaca", 5, (), seed=seed), VOCAB_SIZE, num_processes=1) for seed in (0, 1)
    )
    assert one["input_lens"] != other["input_lens"]


def test_a_saved_run_becomes_a_markdown_table() -> None:
    table = markdown_table(
        [
            {"shape": "llama-8b", "label": "start", "start_s": 13.3},
            {"shape": "llama-8b", "label": "decode-1", "median_tpot_ms": 4.275},
            {"shape": "qwen3-0.6b", "label": "decode-1", "median_tpot_ms": 1.045},
        ]
    ).splitlines()
    assert table[0] == "| | llama-8b | vLLM | qwen3-0.6b | vLLM |"
    assert "| start: process to ready, s | 13.3 | 79.5 | - | 79.5 |" in table
    assert "| decode-1: TPOT, ms | 4.275 | 4.94 | 1.045 | 1.62 |" in table
    assert "| decode-8: TPOT, ms | - | 5.06 |  |  |" in table


def test_all_rows_are_measured_for_each_share_once_the_graphs_of_such_steps_are_there(
    stub_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited: list[str] = []

    @contextmanager
    def served(*_: object) -> Iterator[tuple[str, RunningServer]]:
        yield stub_url, RunningServer(1.0, os.getpid(), lambda seconds: 0)

    monkeypatch.setattr(serving_table, "served", served)
    monkeypatch.setattr(serving_table, "await_graphs", lambda output, kind: awaited.append(kind))
    monkeypatch.setattr(serving_table, "host_profile", lambda output: "")
    options = {"python": "", "server_args": [], "processes": 1, "http_only": False, "captured": False}
    args = argparse.Namespace(**options, deterministic_share=[0.0, 0.5])
    labels = [result["label"] for result in serving_table._measure_model("llama-8b", [ROW], args)]
    assert labels == ["start", "some", "some, 50%", "host profile"]
    assert awaited == ["plain", "deterministic"]


def test_rows_wait_until_the_server_has_its_graphs(tmp_path: Path) -> None:
    """tests/runner/test_idle_capture.py holds the words."""
    with (tmp_path / "log").open("w+b") as output:
        output.write(b"INFO all CUDA graphs of plain steps are captured\n")
        output.flush()
        await_graphs(output.fileno(), "plain")
        with pytest.raises(TimeoutError, match="deterministic"):
            await_graphs(output.fileno(), "deterministic", timeout_s=0.0)
        output.write(b"more\n")
        output.seek(0)
        assert output.read().endswith(b"captured\nmore\n"), "the server's place in it has not moved"


def test_the_host_profile_is_found_in_what_the_server_prints() -> None:
    table = host_table(HostTimes(sse=0.5), 1.0, 2.0, 1000)
    assert host_profile(f"some log\n{table}\nserver ended") == table


def test_the_servers_cpu_is_in_the_result(stub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuUse, "seconds", 2.0)
    result = measure(stub_url, ROW, VOCAB_SIZE, num_processes=1, pid=os.getpid())
    assert result["host_us_per_token"] == pytest.approx(2e6 / (4 * 5))
