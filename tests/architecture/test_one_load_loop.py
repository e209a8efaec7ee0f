"""Every figure is measured by one of two load loops: `runner.py` over HTTP, `offline/replay.py` in the process."""

from __future__ import annotations

from pathlib import Path

import pytest

LOADTEST = Path(__file__).parents[2] / "loadtest"


def files_with(text: str) -> set[str]:
    return {
        file.relative_to(LOADTEST).as_posix()
        for file in LOADTEST.rglob("*.py")
        if text in file.read_text(encoding="utf-8")
    }


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("HttpClient(", {"client_process.py"}),
        ("POST {", {"http_client.py"}),
        ("run_client(", {"client_process.py", "runner.py"}),
        ("system.step()", {"offline/replay.py"}),
        ("system.submit(", {"offline/replay.py"}),
    ],
)
def test_requests_are_sent_by_the_load_loops_alone(text: str, files: set[str]) -> None:
    assert files_with(text) == files


def test_what_measures_under_load_uses_them() -> None:
    over_http = files_with("run_load(") - {"runner.py"}
    assert {
        "cli.py",
        "serving_table.py",
        "compare_cpu.py",
        "compare_guidellm.py",
        "throughput_benchmark.py",
    } <= over_http
    assert files_with("Popen(") <= {"server_process.py", "stub_server.py"}, "what runs beside is a server"
