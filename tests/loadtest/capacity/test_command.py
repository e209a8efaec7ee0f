from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.capacity.command import main
from loadtest.capacity.replica_profile import write_profile
from tests.loadtest.capacity.modelled_profile import modelled_profile


@pytest.fixture
def profile(tmp_path: Path) -> str:
    write_profile(tmp_path / "device.json", modelled_profile())
    return str(tmp_path / "device.json")


def test_a_plan_is_told_in_words_and_for_programs(profile: str, capsys: pytest.CaptureFixture[str]):
    command = f"--profile {profile} --request-rate 200 --workload orca --num-requests 40 --tpot-ms 9".split()
    assert main([*command, "--layout", "1x1", "--layout", "2x1", "--layout", "16x1", "--spare-replicas", "1"]) == 0
    page = capsys.readouterr().out
    assert "200 requests/s (orca); 95 % with TPOT <= 9 ms" in page
    assert "* derived from one GPU, not measured" in page
    assert main([*command, "--layout", "1x1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (plan,) = told["plans"]
    assert plan["replicas"] == plan["gpus"] > 1
    assert plan["requests_per_s_a_replica"] * plan["replicas"] >= 200
    assert plan["tpot_ms"]["p95"] <= 9
    assert plan["fewest_gpus"] and plan["measured"]


def test_lengths_may_be_means(profile: str, capsys: pytest.CaptureFixture[str]):
    command = f"--profile {profile} --request-rate 1 --num-requests 20 --layout 1x1".split()
    assert main([*command, "--input-tokens", "200", "--output-tokens", "20"]) == 0
    assert "1 requests/s (200 tokens in, 20 out)" in capsys.readouterr().out


def test_objectives_that_nothing_meets_are_status_1(profile: str, capsys: pytest.CaptureFixture[str]):
    command = f"--profile {profile} --request-rate 1 --workload orca --num-requests 20 --layout 1x1".split()
    assert main([*command, "--ttft-ms", "0.1"]) == 1
    assert "modelled, 1 x 1: misses TTFT even without load" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--workload nobody", "no workload 'nobody'"),
        ("--workload orca --input-tokens 3", "it already has lengths"),
        ("--input-tokens 3", "give --input-tokens and --output-tokens"),
        ("--workload orca --profile nowhere.json", "there is no file 'nowhere.json'"),
        ("--workload multi-turn", "more than lengths"),
    ],
)
def test_what_cannot_be_planned_is_status_2(arguments: str, told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["--request-rate", "1", *arguments.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--request-rate 0", "--request-rate nan", "--layout 0x1", "--percentile 100"])
def test_a_wrong_number_is_named(wrong: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--request-rate", "1", "--workload", "orca", *wrong.split()])
    assert wrong.split()[0] in capsys.readouterr().err
