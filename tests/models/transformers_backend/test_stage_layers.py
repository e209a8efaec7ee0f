"""The layers that a stage has of a model of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from service.errors import ConfigError
from service.layers.pipeline_stage import PlannedStage
from service.layers.tensor_parallel import ALONE
from service.models.registry import open_model
from service.models.transformers_backend.attention import CurrentStep
from service.models.transformers_backend.probe import probe
from service.models.transformers_backend.stage_layers import StageLayers
from service.models.weight_loader import load_weights
from tests.models.checkpoints import llama, opt
from tests.models.transformers_backend.models import llama_config, meta_model


@pytest.mark.parametrize(("make", "changes"), [(llama, {}), (llama, {"tie_word_embeddings": True}), (opt, {})])
def test_a_stage_has_its_layers_and_its_ends_alone(make, changes, tmp_path: Path):
    """By the names of the checkpoint, of which it reads no other."""
    folder = make(tmp_path, num_hidden_layers=4, **changes)
    whole = open_model(folder, "transformers").model.checkpoint_tensors().keys()
    names = []
    for index in range(2):
        stage = open_model(folder, "transformers", ALONE, None, PlannedStage(2, index)).model
        stage.materialize(torch.float32, torch.device("cpu"))
        load_weights(stage, folder)
        names.append(stage.checkpoint_tensors().keys())
    assert names[0] | names[1] == whole
    assert {name for name in names[0] & names[1] if "embed" not in name} == set()
    assert any(".layers.1." in name for name in names[0]) and any(".layers.2." in name for name in names[1])
    assert any("norm" in name and ".layers." not in name for name in names[1] - names[0])


def test_layers_that_are_no_list_are_refused():
    base = meta_model(llama_config()).base_model
    made = probe(base, CurrentStep(base))
    layers = list(base.layers)
    base.layers = nn.ModuleList(reversed(layers))
    with pytest.raises(ConfigError, match=r"pipeline-parallel-size: the layers of transformers' LlamaModel are not"):
        StageLayers(base, made).keep(range(1))
