"""Values of choices for tests."""

from __future__ import annotations

from typing import Any

from service.layers.linear_method import KernelRows, RowRange
from service.layers.packed_weight import WeightForm
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.graph_sizes import GraphSize

FIELDS: dict[str, Any] = {
    "headrace": "1.0",
    "device": "NVIDIA H200",
    "num_threads": 0,
    "libraries": {"torch": "2.11.0", "triton": "3.6.0"},
    "architecture": "LlamaForCausalLM",
    "weights": {"96x64": 2, "300x64": 1},
    "dtype": "bfloat16",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enforce_eager": False,
}
SIZES = (GraphSize(64, 8), GraphSize(8, 8), GraphSize(32, 0))


def made_for(**changes: Any) -> MadeFor:
    return MadeFor(**{**FIELDS, **changes})


def some_choices(**changes: Any) -> StepChoices:
    rows = KernelRows(skinny=8, add_norm=RowRange(1, 16), gated=RowRange(72, 128))
    return StepChoices(made_for(**changes), {"96x64": rows, "300x64": WeightForm.BOTH}, SIZES)
