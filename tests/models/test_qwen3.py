"""Logits against transformers, fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.models.checkpoints import logits_of, oracle, qwen3
from tests.models.forward import logits

VARIANTS = {
    "heads wider than hidden_size": {"head_dim": 32},
    "multi-head": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "head_dim 20": {"head_dim": 20},
    "biases": {"attention_bias": True},
    "some layers slide": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = qwen3(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)
