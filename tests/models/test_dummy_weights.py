from __future__ import annotations

import pytest
import torch

from service.layers.pipeline_stage import PlannedStage
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.model_config import parse_model_config
from service.models.registry import build_model
from tests.layers.test_shard import ranks
from tests.models.test_model_config import FIELDS, GPT2_FIELDS


def dummy(seed):
    model = build_model(parse_model_config({**FIELDS, "attention_bias": True}))
    model.materialize(torch.float32, torch.device("cpu"))
    fill_with_dummy_weights(model, seed)
    return model.checkpoint_tensors()


def test_normal_weights_and_norms_of_one():
    table = dummy(0)
    embedding = table["model.embed_tokens.weight"]
    assert abs(float(embedding.mean())) < 1e-3
    assert abs(float(embedding.std()) - 0.02) < 1e-3
    assert (table["model.layers.1.input_layernorm.weight"] == 1).all()
    assert (table["model.layers.1.self_attn.q_proj.bias"] != 0).any()


def test_the_seed_decides():
    first, again, other = dummy(3), dummy(3), dummy(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[name], other[name])


def test_layer_norms_have_weights_of_one_and_biases():
    model = build_model(parse_model_config(GPT2_FIELDS))
    model.materialize(torch.float32, torch.device("cpu"))
    fill_with_dummy_weights(model, 0)
    table = model.checkpoint_tensors()
    assert (table["transformer.h.1.ln_2.weight"] == 1).all()
    assert (table["transformer.h.1.ln_2.bias"] != 0).any()
    assert abs(float(table["transformer.wpe.weight"].std()) - 0.02) < 1e-3


@pytest.mark.parametrize("fields", [{**FIELDS, "attention_bias": True}, GPT2_FIELDS], ids=["llama", "gpt2"])
def test_a_ranks_values_are_its_part_of_what_one_rank_would_have(fields):
    def filled(*rank):
        model = build_model(parse_model_config(fields), *rank)
        model.materialize(torch.float32, torch.device("cpu"))
        fill_with_dummy_weights(model, 5)
        return model

    want = filled().checkpoint_tensors()
    for rank in ranks(2):
        model = filled(rank)
        shards = model.checkpoint_shards()
        for name, part in model.checkpoint_tensors().items():
            if part.numel():
                assert torch.equal(part, shards[name].of(want[name]) if name in shards else want[name]), name


@pytest.mark.parametrize("fields", [FIELDS, {**FIELDS, "tie_word_embeddings": True}, GPT2_FIELDS])
def test_a_stages_values_are_those_that_one_stage_would_have(fields):
    def filled(**place):
        model = build_model(parse_model_config(fields), **place)
        model.materialize(torch.float32, torch.device("cpu"))
        fill_with_dummy_weights(model, 5)
        return model.checkpoint_tensors()

    whole, there = filled(), set()
    for index in range(2):
        table = filled(stage=PlannedStage(2, index))
        there |= table.keys()
        assert all(torch.equal(values, whole[name]) for name, values in table.items())
    assert there == whole.keys()
