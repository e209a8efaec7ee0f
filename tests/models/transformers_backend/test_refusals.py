"""What would be computed wrong is refused, each by its own sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import PhimoeConfig, T5Config

from service.errors import ModelLoadError
from service.models.transformers_backend.attention import AttentionCall, CurrentStep
from service.models.transformers_backend.probe import probe
from service.models.transformers_backend.refusals import check_calls, check_config, check_modules
from tests.models.transformers_backend.models import llama_config, meta_model

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (T5Config(d_model=16), "encoder-decoder"),
        (llama_config(layer_types=["chunked_attention", "full_attention"]), "chunked_attention do not keep keys"),
        (llama_config(rope_parameters=DYNAMIC), "'dynamic' makes rotation depend on other sequences"),
    ],
)
def test_by_the_configuration(config, why):
    with pytest.raises(ModelLoadError, match=why):
        check_config(config)


def test_by_a_module_that_remembers():
    model = meta_model(llama_config())
    check_modules(model)
    model.model.layers[1].conv = nn.Conv1d(4, 4, 3, device="meta")
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM is not supported: model\.layers\.1\.conv keeps"):
        check_modules(model)


@pytest.fixture(scope="module")
def calls() -> list[AttentionCall]:
    base = meta_model(llama_config()).base_model
    return list(probe(base, CurrentStep(base)).calls)


def test_what_is_served_passes(calls):
    check_calls(llama_config(), calls)


WRONG = {
    "a mask of its own": {"mask": torch.zeros(1, 1, 3, 3)},
    "unsupported arguments: position_bias": {"others": {"position_bias": torch.zeros(1), "dropout": 0.0}},
    "values are wider than its keys": {"value": torch.zeros(1, 2, 3, 32)},
    "keys of different shapes": {"key": torch.zeros(1, 4, 3, 16)},
    "of kind full_attention, but its attention window is 5": {"window": 5},
}


@pytest.mark.parametrize("why", WRONG)
def test_by_what_a_layer_asks_of_attention(calls, why):
    config = llama_config(layer_types=["full_attention", "full_attention"])
    with pytest.raises(ModelLoadError, match=why):
        check_calls(config, [calls[0], replace(calls[1], **WRONG[why])])


def test_by_layers_that_ask_for_none(calls):
    with pytest.raises(ModelLoadError, match="1 of its 2 layers call attention"):
        check_calls(llama_config(), calls[:1])


def test_by_a_window_that_only_masks_have(calls):
    """As PhiMoE: the calls would attend to all tokens."""
    config = PhimoeConfig(num_hidden_layers=2, sliding_window=37, max_position_embeddings=512)
    with pytest.raises(ModelLoadError, match="sliding_window 37 is only in its masks"):
        check_calls(config, calls)
    check_calls(config, [replace(call, window=37) for call in calls])
    config.sliding_window = 512
    check_calls(config, calls)


def test_by_attention_that_looks_ahead(calls):
    module = nn.Module()
    module.is_causal = False
    with pytest.raises(ModelLoadError, match="is not causal"):
        check_calls(llama_config(), [calls[0], replace(calls[1], module=module)])


def test_by_heads_that_no_kernel_takes(calls):
    wide = torch.zeros(1, 2, 3, 512)
    huge = [replace(call, query=wide, key=wide, value=wide) for call in calls]
    with pytest.raises(ModelLoadError, match="head_dim 512 exceeds the limit of 256"):
        check_calls(llama_config(), huge)
