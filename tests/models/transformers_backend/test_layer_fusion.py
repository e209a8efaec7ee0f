"""What a layer by transformers' modules launches, and which forms are left to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from service.models.registry import open_model
from service.models.transformers_backend.attention import CurrentStep
from service.models.transformers_backend.layer_fusion import LayerFusion, _is_called_plainly
from service.models.transformers_backend.model import TransformersModel
from service.models.transformers_backend.probe import ModuleCall, probe
from tests.equivalence.family_list import FAMILIES
from tests.models.checkpoints import llama, mistral, mixtral, qwen2, qwen3
from tests.models.transformers_backend.launches import launches_of_layer, launches_of_step
from tests.models.transformers_backend.models import llama_config, meta_model

BY_NAME = {family.name: family for family in FAMILIES}


def fusion_of(folder: Path) -> LayerFusion:
    model = open_model(folder, "transformers").model
    assert isinstance(model, TransformersModel)
    return model._fusion


@pytest.mark.parametrize("save", [llama, mistral, qwen2, qwen3, mixtral])
def test_a_layer_launches_what_a_native_one_launches(save, tmp_path: Path):
    """And a step two operations more: the embedding's rows are copied, and the last sum is not fused with its norm."""
    folder, deeper = save(tmp_path / "2"), save(tmp_path / "3", num_hidden_layers=3)
    if save is not mixtral:  # transformers' router is made of its own operations
        native, theirs = (launches_of_layer(folder, deeper, impl) for impl in ("native", "transformers"))
        assert len(native) == 6 and theirs == native
        assert len(launches_of_step(folder, "transformers")) == len(launches_of_step(folder, "native")) + 2
    of_layer = launches_of_layer(folder, deeper, "transformers")
    assert not {"cos", "sin", "mul", "add"} & set(of_layer), "rotation and sums"
    assert of_layer.count("rotary_and_cache") == 1


@pytest.mark.parametrize(
    ("name", "has_attention", "has_layers"),
    [
        ("SmolLM3", True, True),  # no rotation in some layers
        ("Seed-OSS", True, True),
        ("GLM-4.5", True, True),  # experts
        ("Phi-2", True, False),  # attention and MLP beside each other; some dims of a head are rotated
        ("Granite 3", True, False),  # branches are scaled before they are added
        ("StableLM 2", True, False),  # layer norms
        ("Gemma 2", True, False),  # norms after the branches
        ("OLMo 2", False, False),  # a norm over all heads
        ("Command-R", False, False),  # dims are rotated in pairs side by side
        ("Hunyuan dense", False, False),  # heads are normed after they are rotated
        ("Ministral 3", False, False),  # queries are scaled by their position
        ("DeepSeek V2", False, False),
        ("OPT", False, False),
    ],
)
def test_what_is_fused_of_a_family(name: str, has_attention: bool, has_layers: bool, tmp_path: Path):
    fusion = fusion_of(BY_NAME[name].save(tmp_path))
    assert (fusion.has_attention, fusion.narrows) == (has_attention, has_layers)


def test_rotary_positions_of_three_axes_stay_theirs():
    """Qwen3-VL's rotary module also takes positions of one axis, so its trial alone would pass."""
    model = meta_model(llama_config())
    made = probe(model.base_model, CurrentStep(model.base_model)).modules["rotary_emb"]
    hidden, (positions,) = made.arguments[0], made.named.values()
    assert isinstance(positions, Tensor)
    assert _is_called_plainly(made)
    assert not _is_called_plainly(ModuleCall((hidden, positions.expand(3, -1, -1)), {}))


def test_linears_behind_attention_of_the_last_layer_get_the_rows_that_are_read(tmp_path: Path):
    """As in native files, so adapters change the same rows."""
    folder = llama(tmp_path)
    ours, theirs = (open_model(folder, impl).model.block_linears() for impl in ("native", "transformers"))
    assert [[each.reads_rows for each in block] for block in theirs] == [
        [each.reads_rows for each in block] for block in ours
    ]


def test_the_same_places_are_fused_as_in_a_native_file(tmp_path: Path):
    folder = llama(tmp_path, num_hidden_layers=3)
    ours, theirs = (open_model(folder, impl).model.add_norm_fusions() for impl in ("native", "transformers"))
    assert len(ours) == len(theirs) == 5
    assert [each.product.shape_name for each in theirs] == [each.product.shape_name for each in ours]
