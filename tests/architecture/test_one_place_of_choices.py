"""Nothing is chosen by timing outside service/runner/choices, and nobody but it asks a weight for its plain form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHOOSING = "service/runner/choices/"
MEASURES_ALL_THE_SAME = {
    "service/layers/exchange_timer.py": "how long exchanges between ranks take, for the metrics",
    "service/runner/kv_transfer.py": "how long a transfer took, for its prediction",
    "service/runner/stage_step.py": "how long a stage computed, for the metrics",
    "service/runner/staging.py": "how long a step took, for its prediction",
    "service/runner/trainings.py": "how long layer steps took, likewise",
    "service/runner/load_phases.py": "what is told of the start",
}
"""Files of what computes that read a clock, and choose nothing by it."""

COMPUTES = ("service/layers", "service/models", "service/runner", "service/sampling")


def files_with(pattern: str, *folders: str) -> set[str]:
    """Below the folders, by their paths; those of service/runner/choices as one."""
    found = set()
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        if re.search(pattern, file.read_text(encoding="utf-8")):
            name = file.relative_to(ROOT).as_posix()
            found.add(CHOOSING if name.startswith(CHOOSING) else name)
    return found


@pytest.mark.parametrize("helper", [r"import .*\bseconds_by_replay\b", r"import .*\bcompile_noted\b"])
def test_kernels_are_timed_in_one_place(helper: str) -> None:
    assert files_with(helper, "service") == {CHOOSING}


def test_who_reads_a_clock_to_choose() -> None:
    clocks = r"\b(perf_counter|thread_time|monotonic|elapsed_time|process_time|seconds_on_cpu|seconds_on_gpu)\("
    assert files_with(clocks, *COMPUTES) == {CHOOSING, *MEASURES_ALL_THE_SAME}


def test_a_model_names_its_products_and_chooses_nothing() -> None:
    assert files_with(r"runner\.choices|use_choices|\.use\(|\.pack\(", "service/models") == set()


def test_nobody_reaches_into_weights_but_the_layers_that_have_them_and_who_times_their_methods() -> None:
    found = files_with(r"\b(plain|held)_weight\b", "service")
    layers = {f"service/layers/{name}.py" for name in ("embedding", "linear", "projection")}
    trainer = {f"service/finetune/{name}.py" for name in ("trained_linear", "trained_model")}
    assert found == {CHOOSING, *layers, *trainer}
    reaching = files_with(
        r"(linear|product|projection|gate_up|down|qkv|output|head)\.(weight|method)\b(?!\")", "service"
    )
    assert reaching <= {CHOOSING, "service/layers/rms_norm.py", "service/layers/gated_mlp.py"}
