"""Logits against transformers, fp32 on the CPU, for each shape and each way to stretch positions; Mistral and Qwen2,
which are Llama but for one thing each, beside it."""

from __future__ import annotations

import pytest
import torch

from service.layers.linear_method import KernelRows, RowRange
from tests.models.checkpoints import llama, logits_of, mistral, oracle, phi3, qwen2
from tests.models.forward import logits

TRAINED = {"original_max_position_embeddings": 64}
VARIANTS = {
    "grouped-query": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "head_dim 20": {"head_dim": 20},
    "head_dim 6": {"head_dim": 6, "num_attention_heads": 8},
    "gelu": {"hidden_act": "gelu"},
    "gelu, tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **TRAINED,
        }
    },
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, **TRAINED}},
    "yarn, attention factor": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "attention_factor": 0.8,
            **TRAINED,
        }
    },
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = llama(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["grouped-query", "gelu", "biases"])
def test_norms_whose_division_is_left_to_the_next_product_are_the_same_function(name, tmp_path):
    folder = llama(tmp_path, num_hidden_layers=3, **VARIANTS[name])
    tokens = torch.randint(0, 301, (50,)).tolist()
    want = logits_of(oracle(folder), tokens)
    torch.testing.assert_close(logits(folder, tokens, KernelRows(add_norm=RowRange(1, 64))), want, atol=2e-4, rtol=2e-4)


MISTRAL_VARIANTS = {
    "window": {},
    "window of one token": {"sliding_window": 1},
    "window as long as the prompt": {"sliding_window": 200},
    "no window": {"sliding_window": None},
    "head_dim 20, multi-head": {"head_dim": 20, "num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("changes", MISTRAL_VARIANTS.values(), ids=MISTRAL_VARIANTS)
def test_mistral_looks_back_over_a_window(changes, tmp_path):
    folder = mistral(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


QWEN2_VARIANTS = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "some layers slide": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "all layers slide": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    "layer types": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


@pytest.mark.parametrize("changes", QWEN2_VARIANTS.values(), ids=QWEN2_VARIANTS)
def test_qwen2_has_biases_of_query_key_and_value(changes, tmp_path):
    folder = qwen2(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 21},
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 512}, "tie_word_embeddings": True},
    ],
    ids=["plain", "window", "longrope, long", "longrope, short"],
)
def test_phi_3_equals_transformers(changes, tmp_path):
    folder = phi3(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)
