"""Names of a checkpoint -> places, by transformers' mapping."""

from __future__ import annotations

import pytest
import torch
from transformers import MixtralConfig

from service.errors import ModelLoadError
from service.models.transformers_backend.checkpoint_names import CheckpointNames
from tests.models.checkpoints import SMALL
from tests.models.transformers_backend.models import llama_config, meta_model

EXPERTS = "model.layers.0.mlp.experts."


def test_a_matrix_an_expert_goes_to_its_part_of_one_tensor():
    model = meta_model(MixtralConfig(**SMALL, num_local_experts=3))
    names = CheckpointNames(model)
    gate_up, down = torch.arange(3 * 8 * 2.0).view(3, 8, 2), torch.zeros(3, 2, 4)
    own = {EXPERTS + "gate_up_proj": gate_up, EXPERTS + "down_proj": down}
    stored = [f"model.layers.0.block_sparse_moe.experts.{e}.{w}.weight" for w in ("w1", "w2", "w3") for e in range(3)]
    places = names.places(stored, own)
    assert list(places) and set(places) == set(stored), "nothing of the model is missing, nothing else has a place"
    for expert in range(3):
        prefix = f"model.layers.0.block_sparse_moe.experts.{expert}."
        assert torch.equal(places[prefix + "w1.weight"], gate_up[expert, :4])
        assert torch.equal(places[prefix + "w3.weight"], gate_up[expert, 4:])
        assert places[prefix + "w2.weight"].data_ptr() == down[expert].data_ptr()
    with pytest.raises(ModelLoadError, match="does not have 3 each of"):
        names.places([name for name in stored if ".2." not in name], own)


def test_a_checkpoint_of_the_stack_alone_has_no_prefix():
    names = CheckpointNames(meta_model(llama_config()))
    norm, tensor = "model.norm.weight", torch.zeros(2)
    assert set(names.places(["norm.weight"], {norm: tensor})) == {"norm.weight"}
    assert set(names.places([norm], {norm: tensor})) == {norm}
    assert set(names.places(["else.weight"], {norm: tensor})) == {norm}, "what is missing keeps the model's name"
