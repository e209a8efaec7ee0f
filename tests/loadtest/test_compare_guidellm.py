import dataclasses
from pathlib import Path

import httpx
import pytest

from loadtest.compare_guidellm import (
    FIGURES,
    Load,
    differences,
    guidellms,
    medians,
    one_round,
    ours,
    prompt_rows,
    read_report,
)
from tests.loadtest.conftest import ITL_S, TTFT_S

LOAD = Load(num_clients=2, num_requests=4, prompt_len=8, output_len=5)


def report(completed: int, errored: int = 0) -> dict:
    def successful(**values: float) -> dict:
        return {"successful": values}

    metrics = {
        "request_totals": {"successful": completed, "errored": errored},
        "requests_per_second": successful(mean=2.0),
        "output_tokens_per_second": successful(mean=10.0),
        "time_to_first_token_ms": successful(median=30.0),
        "inter_token_latency_ms": successful(median=4.0),
    }
    return {"benchmarks": [{"metrics": metrics}]}


def check_not_too_good(figures: dict[str, float]) -> None:
    """The stub's own times are the best that can be measured. A loaded machine's are longer, but behind a token
    that was late the next one seems early."""
    assert figures["TTFT, ms: median"] > 0.98 * TTFT_S * 1e3
    assert figures["ITL, ms: median"] > 0.8 * ITL_S * 1e3
    assert 0 < figures["requests/s"] < 1.02 * 2 / (TTFT_S + 4 * ITL_S)


def test_ours_says_what_the_server_does(stub_url: str) -> None:
    check_not_too_good(ours(stub_url, LOAD))


def test_the_stub_takes_either_name_of_the_limit(fast_stub_url: str) -> None:
    body = {
        "model": "stub",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 3,
        "stream": True,
    }
    body["stream_options"] = {"include_usage": True}
    answer = httpx.post(f"{fast_stub_url}/v1/chat/completions", json=body, timeout=10)
    assert '"completion_tokens":3' in answer.text.replace(" ", "")


def test_reads_its_report() -> None:
    assert read_report(report(4), LOAD) == dict(zip(FIGURES, (2.0, 10.0, 30.0, 4.0), strict=True))
    for bad in (report(3), report(4, errored=1)):
        with pytest.raises(RuntimeError, match="of 4 requests"):
            read_report(bad, LOAD)


def test_a_program_that_fails_is_an_error(stub_url: str, tmp_path: Path) -> None:
    program = tmp_path / "guidellm"
    program.write_text("#!/bin/sh\necho no data >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="code 3: no data"):
        guidellms(str(program), stub_url, LOAD)


def test_differences_are_of_medians() -> None:
    rounds = [dict.fromkeys(FIGURES, value) for value in (1.0, 1.1, 9.0)]
    assert medians(rounds)["requests/s"] == 1.1
    assert differences(medians(rounds), dict.fromkeys(FIGURES, 1.0))["requests/s"] == pytest.approx(0.1)


def test_both_send_the_same_prompts(tmp_path: Path, stub_url: str) -> None:
    rows = prompt_rows(LOAD)
    assert len({row["prompt"] for row in rows}) == LOAD.num_requests
    assert {row["output_tokens_count"] for row in rows} == {LOAD.output_len}
    program = tmp_path / "guidellm"
    program.write_text(
        f"""#!/usr/bin/env python3
import json, re, sys
options = dict(re.findall(r"--(data|output)=\\S*path=(\\S+)", " ".join(sys.argv[1:])))
assert json.loads(open(options["data"]).readline())["prompt"] == {rows[0]["prompt"]!r}
json.dump({report(4)!r}, open(options["output"], "w"))
"""
    )
    program.chmod(0o755)
    for ours_first in (True, False):
        paced = dataclasses.replace(LOAD, request_rate=50.0)
        our_figures, their_figures = one_round(stub_url, str(program), (LOAD, paced), ours_first)
        assert their_figures["requests/s"] == 2.0
        check_not_too_good(our_figures)
