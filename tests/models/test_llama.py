"""Logits against transformers, fp32 on the CPU, for each shape and each way to stretch positions."""

from __future__ import annotations

import pytest
import torch

from tests.models.checkpoints import llama, logits_of, oracle
from tests.models.forward import logits

TRAINED = {"original_max_position_embeddings": 64}
VARIANTS = {
    "grouped-query": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "head_dim 20": {"head_dim": 20},
    "head_dim 6": {"head_dim": 6, "num_attention_heads": 8},
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
