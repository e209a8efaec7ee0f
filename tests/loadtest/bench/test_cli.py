from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.bench.cli import main

ON_A_CPU = ["--device", "cpu", "--dtype", "float32"]


def check(what: str, printed: str) -> None:
    result = json.loads(printed.splitlines()[-1])
    assert (result["bench"], result["model"], result["dtype"]) == (what, "headrace-quickstart", "float32")


def test_bench_measures_the_model_that_comes_with_headrace():
    command = [sys.executable, "-m", "loadtest.bench", "latency", "--batch-sizes", "2", "--output-len", "4", *ON_A_CPU]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check("latency", done.stdout)


def test_and_what_it_computes_at_once(capsys: pytest.CaptureFixture[str]):
    """The command in this process, which has imported what it needs."""
    assert main(["throughput", "--workload", "fixed-9x3", *ON_A_CPU]) == 0
    check("throughput", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["throughput", "--workload", "nope"], "workload: no workload 'nope'"),
        (["throughput", "--workload", "multi-turn"], "workload: 'multi-turn' needs a server"),
        (["latency", "--load-format", "nope"], "load-format"),
        (["throughput", "no/such/folder"], "model: 'no/such/folder' is neither"),
    ],
)
def test_a_bench_that_cannot_be_ends_with_status_2_and_one_line(arguments, named, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m loadtest.bench: ")
    assert named in error
    assert error.count("\n") == 1
