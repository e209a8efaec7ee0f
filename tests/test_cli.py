from __future__ import annotations

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


def test_parity_runs_beside_the_service():
    command = [sys.executable, "-m", "service", "parity", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage: headrace parity" in shown.stdout


def test_plan_runs_beside_the_service():
    command = [sys.executable, "-m", "service", "plan", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage: headrace plan" in shown.stdout


def test_loadtest_runs_the_load_generator():
    command = [sys.executable, "-m", "service", "loadtest"]
    assert "sharegpt" in subprocess.run([*command, "workloads"], capture_output=True, text=True, check=True).stdout
    wrong = subprocess.run([*command, "run", "--nope"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "usage: headrace loadtest" in wrong.stderr
