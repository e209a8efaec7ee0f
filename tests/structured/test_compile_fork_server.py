"""What one trial may do; the process as the service uses it: test_compile_trials.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compile_fork_server import ForkServerStart, Trial, TrialLimits, try_compile
from service.structured.compile_trials import CompileTrials
from tests.structured.tiny_grammars import VOCABULARY, table

GOOD = GrammarSpec("regex", "[a-z]+", "regex")
OVERFLOWING = GrammarSpec(
    "json_schema", f'{{"type": "integer", "minimum": {-(2**63)}, "maximum": {-(2**63) + 1}}}', "x"
)
"""llguidance 1.9 recurses without end in it: its stack overflows."""


@pytest.mark.parametrize(
    ("limits", "spec", "said"),
    [
        (
            TrialLimits(memory_bytes=24 * 2**20, cpu_s=60.0, wall_s=90.0),
            GrammarSpec("json_schema", '{"type": "integer", "multipleOf": 499979}', "x"),
            "takes more than 24 MiB to compile",
        ),
        (
            TrialLimits(cpu_s=0.2, wall_s=90.0),
            GrammarSpec("grammar", 'root ::= "a"' + "\n" * 60_000, "x"),
            "takes longer than 0.2 s to compile",
        ),
        (TrialLimits(cpu_s=60.0, wall_s=90.0), OVERFLOWING, ""),
    ],
    ids=["memory", "python", "stack"],
)
def test_what_a_trial_breaks_ends_the_trial_alone(limits: TrialLimits, spec: GrammarSpec, said: str) -> None:
    trials = CompileTrials(table(), limits)
    trial = trials.run(spec)
    assert trial.is_costly
    assert said in (trial.error or "")
    assert trials.run(GOOD).error is None
    trials.close()


def test_what_the_service_would_read_for_long_is_refused() -> None:
    assert try_compile(GOOD, VOCABULARY, TrialLimits(read_s=0.0)) == Trial("takes too long to parse", is_costly=True)
    assert try_compile(GOOD, VOCABULARY, TrialLimits()).error is None


@pytest.mark.parametrize(
    "given", [b"", ForkServerStart(table(), TrialLimits()).to_bytes()[:100]], ids=["nothing", "half"]
)
def test_without_a_service_it_ends(given: bytes) -> None:
    command = [sys.executable, "-m", "service.structured.compile_fork_server"]
    assert subprocess.run(command, input=given, stdout=subprocess.PIPE, timeout=30, check=True).stdout == b""


def test_it_needs_neither_torch_nor_a_server() -> None:
    """It is to start fast and to be small."""
    unneeded = ["torch", "transformers", "numpy", "starlette", "pydantic"]
    program = f"import sys, service.structured.compile_fork_server; print([x for x in {unneeded} if x in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout.strip() == b"[]"
