from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from service.layers.linear import Linear
from service.layers.linear_method import PackedMethod
from service.layers.packed_weight import WeightForm, can_pack
from service.models.model_config import parse_model_config
from service.models.registry import build_model
from tests.models.test_model_config import LEAST_FIELDS


@pytest.mark.each_once
@pytest.mark.parametrize("name", LEAST_FIELDS)
@pytest.mark.parametrize("tied", [False, True])
def test_life_of_a_model(name, tied):
    config = parse_model_config({**LEAST_FIELDS[name], "tie_word_embeddings": tied})
    model = build_model(config)
    model.materialize(torch.bfloat16, torch.device("cpu"))
    table = model.checkpoint_tensors()
    assert all(t.dtype is torch.bfloat16 and t.device.type == "cpu" for t in table.values())
    held = sum(p.numel() for p in model.parameters())
    assert sum(t.numel() for t in table.values()) == held, "every parameter has a name in a checkpoint, once"
    assert ("lm_head.weight" in table) is not tied
    assert ("lm_head.weight" in model.ignored_checkpoint_names()) is tied

    for tensor in table.values():
        tensor.zero_()
    model.build_positions(32, torch.device("cpu"))
    for projection in model.projections:
        projection.pack(WeightForm.ONEDNN)
    model.settle()
    linears = [m for m in model.modules() if isinstance(m, Linear)]
    assert len(linears) >= 6
    assert all(isinstance(m.method, PackedMethod) == can_pack(torch.bfloat16) for m in linears)


def test_giving_the_parameters_memory_does_not_import_a_computer_algebra_system():
    """As torch's own `to_empty` does."""
    code = """
import json, sys, torch
from service.models.model_config import parse_model_config
from service.models.registry import build_model
model = build_model(parse_model_config(json.loads(sys.argv[1])))
model.materialize(torch.bfloat16, torch.device("cpu"))
sys.exit("sympy" in sys.modules)
"""
    fields = json.dumps(LEAST_FIELDS["LlamaForCausalLM"])
    assert subprocess.run([sys.executable, "-c", code, fields], check=False).returncode == 0
