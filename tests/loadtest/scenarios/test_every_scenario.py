"""Each scenario is drawn in a tiny form: not its figures are looked at, but that it runs and tells what it should."""

import dataclasses
import time
from importlib import import_module
from pathlib import Path

import pytest

from loadtest.scenarios import __main__ as command
from loadtest.scenarios.figure import Figure, figure_text
from loadtest.scenarios.stage import SMALL, Stage

TINY = dataclasses.replace(
    SMALL,
    max_model_len=256,
    max_num_seqs=34,
    request_divisor=100,
    policy_divisor=100,
    num_probes=2,
    sweep_s=0.02,
    rate_factors=(0.7,),
)


SLOW = {"orca_fig9", "overhead_table", "fineinfer_overhead"}
"""transformers' loops, and servers: `make figures` runs them."""


FEWER = {
    "fineinfer_deferral": {"BOUNDS_S": (0.0, 0.5), "RATES": (1.0, 8.0)},
    "fineinfer_coserving": {"RATES": (5.0, 20.0)},
    "adaptivellm_fig9": {"_ROUNDS": 2},
    "adaptivellm_regressors": {"WORKLOADS": ("chatbot", "alpaca"), "LONGEST_OUTPUT": 32},
    "adaptivellm_table5": {"LONGEST_OUTPUT": 48},
    "pagedattention_fig15": {"NUM_ANSWERS": (2, 3), "BEAM_WIDTHS": (2, 3)},
    "pagedattention_fig18": {"BLOCK_SIZES": (1, 16, 256)},
    "pagedattention_fig19": {"_ROUNDS": 2},
    "orca_fig11": {"SIZES": (1, 8)},
}
"""What of a scenario is written in its module."""


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(TINY)


@pytest.mark.parametrize("name", [name for name in command.SCENARIOS if name not in SLOW])
def test_is_drawn(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in FEWER.get(name, {}).items():
        monkeypatch.setattr(import_module(f"loadtest.scenarios.{name}"), constant, value)
    figure = command.SCENARIOS[name](stage)
    assert figure.name == name
    assert figure.tables
    for table in figure.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert figure_text(figure)


def test_a_scenario_that_fails_does_not_stop_the_others(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(stage: Stage) -> Figure:
        raise ValueError("on purpose")

    good = Figure("good", "Good", "nothing", [])
    monkeypatch.setattr(command, "SCENARIOS", {"bad": fails, "good": lambda stage: good})
    assert command.draw(["bad", "good"], stage, tmp_path) == ["bad"]
    assert "Good" in (tmp_path / "index.html").read_text()


def test_a_scenario_that_takes_too_long_is_given_up(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(stage: Stage) -> Figure:
        while True:
            time.sleep(0.01)

    good = Figure("good", "Good", "nothing", [])
    monkeypatch.setattr(command, "SCENARIOS", {"endless": never_ends, "good": lambda stage: good})
    assert command.draw(["endless", "good"], stage, tmp_path, limit_s=0.05) == ["endless"]
    assert (tmp_path / "good.txt").exists()
