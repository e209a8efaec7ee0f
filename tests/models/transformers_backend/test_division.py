"""What the ranks of tensor parallelism have of a model of transformers, and what they cannot share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from service.errors import ConfigError
from service.layers.pipeline_stage import PlannedStage
from service.layers.tensor_parallel import Planned
from service.models.causal_lm import CausalLM
from service.models.registry import open_model
from service.models.weight_loader import load_weights
from tests.equivalence.family_list import FAMILIES
from tests.models.checkpoints import llama, mixtral

BY_NAME = {family.name: family for family in FAMILIES}


def save(name: str, folder: Path, **changes: object) -> Path:
    family = BY_NAME[name]
    config = family.configuration()
    for field, value in changes.items():
        setattr(config, field, value)
    torch.manual_seed(0)
    model = type(family.random_model())(config)
    model.save_pretrained(folder)
    return folder


def part(folder: Path, rank: int, size: int) -> CausalLM:
    place = Planned(size)
    place.rank = rank
    model = open_model(folder, "transformers", place).model
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder)
    return model


def together(folder: Path, size: int, tensor: str, dim: int) -> Tensor:
    return torch.cat([part(folder, rank, size).checkpoint_tensors()[tensor] for rank in range(size)], dim)


@pytest.mark.parametrize("make", [llama, mixtral])
def test_the_parts_of_the_same_checkpoint_are_our_own_files(make, tmp_path: Path):
    folder = make(tmp_path, num_key_value_heads=1, tie_word_embeddings=True)
    for rank in range(2):
        place = Planned(2)
        place.rank = rank
        ours = open_model(folder, "native", place).model
        ours.materialize(torch.float32, torch.device("cpu"))
        load_weights(ours, folder)
        own, theirs = ours.checkpoint_tensors(), part(folder, rank, 2).checkpoint_tensors()
        compared = [name for name in own if name in theirs and "embed" not in name]
        assert len(compared) > 10
        for name in compared:
            assert torch.equal(own[name], theirs[name]), name
        stacked = "model.layers.1.mlp.experts.gate_up_proj"
        if make is mixtral:
            for expert, (_, ups) in enumerate(tensor.chunk(2) for tensor in theirs[stacked]):
                assert torch.equal(ups, own[f"model.layers.1.block_sparse_moe.experts.{expert}.w3.weight"])


def test_queries_that_a_norm_needs_whole_are_divided_and_gathered(tmp_path: Path):
    folder = save("OLMo 2", tmp_path)
    name = "model.layers.0.self_attn.{}.weight"
    whole = part(folder, 0, 1).checkpoint_tensors()
    for linear, dim in (("q_proj", 0), ("k_proj", 0), ("o_proj", 1)):
        assert torch.equal(together(folder, 2, name.format(linear), dim), whole[name.format(linear)])
    assert torch.equal(part(folder, 1, 2).checkpoint_tensors()[name.format("q_norm")], whole[name.format("q_norm")])


def test_a_head_with_a_bias_is_divided(tmp_path: Path):
    folder = save("Phi-2", tmp_path, vocab_size=410)
    whole = part(folder, 0, 1).checkpoint_tensors()
    for name in ("lm_head.weight", "lm_head.bias"):
        assert torch.equal(together(folder, 2, name, 0), whole[name])


def test_where_there_are_fewer_key_heads_than_ranks_several_have_the_same(tmp_path: Path):
    folder = save("SmolLM3", tmp_path)
    keys = [part(folder, rank, 4).checkpoint_tensors()["model.layers.1.self_attn.k_proj.weight"] for rank in range(4)]
    assert torch.equal(keys[0], keys[1]) and torch.equal(keys[2], keys[3]) and not torch.equal(keys[1], keys[2])


@pytest.mark.parametrize(
    ("name", "changes", "size", "why"),
    [
        ("SmolLM3", {}, 3, r"3 does not divide the model's attention heads 4; key-value heads 2 \(neither"),
        (
            "SmolLM3",
            {"intermediate_size": 97},
            2,
            r"model's layers\.\*\.mlp\.gate_proj 97; layers",
        ),
        ("DeepSeek V2", {"moe_intermediate_size": 33}, 2, r"model's .*layers\.\*\.mlp\.experts 33"),
        ("StableLM 2", {"qk_layernorm": True}, 2, r"StableLmModel cannot compute only some heads: .* pipeline-"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(name, changes, size, why, tmp_path: Path):
    folder = save(name, tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"^tensor-parallel-size: .*{why}"):
        open_model(folder, "auto", Planned(size))


@pytest.mark.parametrize("name", ["SmolLM3", "OLMo 2", "GLM-4.5"])
def test_a_model_of_16_bits_is_tried_without_memory(tmp_path: Path, name: str):
    """As real ones are: a CPU's own loops take addresses."""
    folder = save(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    config, model = open_model(folder, "auto", Planned(2), None, PlannedStage(2))
    assert config.checkpoint_dtype == "bfloat16"
    assert {each.device.type for each in model.parameters()} == {"meta"}
