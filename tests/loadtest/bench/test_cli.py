from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.bench.cli import main


@pytest.mark.parametrize(
    "what", [["latency", "--batch-sizes", "2", "--output-len", "4"], ["throughput", "--workload", "fixed-9x3"]]
)
def test_bench_measures_the_model_that_comes_with_headrace(what: list[str]):
    command = [sys.executable, "-m", "loadtest.bench", *what, "--device", "cpu", "--dtype", "float32"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["bench"], result["model"], result["dtype"]) == (what[0], "headrace-quickstart", "float32")


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
