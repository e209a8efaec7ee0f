from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from service.models.model_config import parse_model_config
from service.models.registry import build_model
from service.runner.choices import made_for as module
from service.runner.choices.made_for import MadeFor
from tests.models.test_model_config import FIELDS
from tests.runner.choices.some_choices import made_for

CHANGES = {
    "headrace": "1.1",
    "device": "NVIDIA H100",
    "num_threads": 4,
    "libraries": {"torch": "2.11.0", "triton": "3.7.0"},
    "architecture": "Qwen3ForCausalLM",
    "weights": {"96x64": 3, "300x64": 1},
    "dtype": "float32",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 65,
    "enforce_eager": True,
    "deterministic": True,
}


def test_equals_do_not_differ():
    assert made_for().difference(made_for()) is None


@pytest.mark.parametrize("name", [field.name for field in fields(MadeFor)])
def test_what_differs_is_named_with_both_values(name):
    told = made_for().difference(made_for(**{name: CHANGES[name]}))
    assert told is not None and told.startswith(f"{name} is ")
    assert " in the file, but " in told and told.endswith(" here")


def test_shapes_and_versions_are_told_readably():
    assert made_for().difference(made_for(libraries=CHANGES["libraries"])) == (
        "libraries is torch 2.11.0, triton 3.6.0 in the file, but torch 2.11.0, triton 3.7.0 here"
    )


def test_of_a_model_without_memory_on_this_machine():
    config = parse_model_config(FIELDS)
    model = build_model(config)
    mine = MadeFor.of(model, config.architecture, torch.device("cpu"), torch.bfloat16, 4, 64, enforce_eager=True)
    assert mine.libraries["torch"] == torch.__version__
    assert mine.num_threads == torch.get_num_threads()
    assert (mine.architecture, mine.dtype, mine.max_num_seqs) == ("LlamaForCausalLM", "bfloat16", 4)
    assert sum(mine.weights.values()) == 4 * config.num_layers + 1
    assert mine.weights[f"{config.hidden_size}x{config.intermediate_size}"] >= config.num_layers
    assert mine.device


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\nstepping\t: 1\n\nmodel name: other\n",
            "AMD EPYC 25 17 1",
        ),
        ("BogoMIPS: 50\n", None),
        (None, None),
    ],
)
def test_the_name_of_a_processor(text, name, tmp_path, monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "riscv64")
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert module._cpu_name(file) == (name or "riscv64")
