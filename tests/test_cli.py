from __future__ import annotations

import json
import subprocess
import sys

import pytest

from service.cli import main
from service.core.version import distribution_version


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "serve [MODEL]" in printed
    assert "chat [URL]" in printed
    assert "loadtest" in printed
    assert "bench" in printed


def test_an_unknown_command_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["swerve"]) == 2
    assert "no command 'swerve'" in capsys.readouterr().err


def test_a_bad_setting_ends_with_status_2_and_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--port", "x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace serve: port: ")
    assert error.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == distribution_version()


def test_python_dash_m_service_is_the_command():
    done = subprocess.run([sys.executable, "-m", "service", "--help"], capture_output=True, text=True, check=True)
    assert "usage: headrace" in done.stdout


def test_a_commands_own_help():
    done = subprocess.run([sys.executable, "-m", "service", "serve", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--max-num-batched-tokens" in done.stdout


@pytest.mark.parametrize(
    "what", [["latency", "--batch-sizes", "2", "--output-len", "4"], ["throughput", "--workload", "fixed-9x3"]]
)
def test_bench_measures_the_model_that_comes_with_headrace(what: list[str]):
    command = [sys.executable, "-m", "service", "bench", *what, "--device", "cpu", "--dtype", "float32"]
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
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace bench: ")
    assert named in error
    assert error.count("\n") == 1
