"""Frequencies against transformers' own, for each scaling."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from service.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RotaryEmbedding,
    YarnScaling,
    rotary_angles,
)

THEIRS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}
OURS = {
    "default": None,
    "linear": LinearScaling(4.0),
    "llama3": Llama3Scaling(8.0, 1.0, 4.0, 64),
    "yarn": YarnScaling(4.0, 64, attention_factor=1.138629436),
    "yarn, untruncated": YarnScaling(4.0, 64, 1.3, beta_fast=16.0, beta_slow=2.0, truncate=False),
    "dynamic": DynamicScaling(2.0, 256),
}


def built(config: RopeConfig, num_positions: int) -> RotaryEmbedding:
    rotary = RotaryEmbedding(config)
    rotary.build(num_positions, torch.device("cpu"))
    return rotary


def theirs(name: str, head_dim: int) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=4 * head_dim,
            num_attention_heads=4,
            head_dim=head_dim,
            max_position_embeddings=256,
            rope_parameters={"rope_theta": 10_000.0, **THEIRS[name]},
        )
    )


@pytest.mark.each_once
@pytest.mark.parametrize("head_dim", [16, 20, 128])
@pytest.mark.parametrize("name", THEIRS)
def test_tables_equal_those_of_transformers(name, head_dim):
    positions = torch.tensor([0, 1, 5, 63, 64, 65, 255])
    want_cos, want_sin = theirs(name, head_dim)(torch.zeros(1), positions[None])
    cos, sin = built(RopeConfig(10_000.0, head_dim, OURS[name]), 256)(positions)
    half = head_dim // 2
    torch.testing.assert_close(cos, want_cos[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(sin[:, half:], want_sin[0, :, half:], atol=1e-6, rtol=1e-6)
    assert torch.equal(sin[:, :half], -sin[:, half:])
    assert cos.dtype == sin.dtype == torch.float32


def test_dynamic_positions_turn_as_the_last_of_their_sequence():
    config = RopeConfig(10_000.0, 16, DynamicScaling(2.0, 256))
    angles = rotary_angles(config, 400)
    for position in (255, 256, 300, 399):
        rotary = theirs("dynamic", 16)
        cos, _ = rotary(torch.zeros(1), torch.tensor([[position]]))
        torch.testing.assert_close(angles[position].cos(), cos[0, 0, :8], atol=1e-5, rtol=1e-5)


def test_attention_factor_is_yarns_alone():
    assert RopeConfig(1e4, 8, LinearScaling(2.0)).attention_factor == 1.0
    assert RopeConfig(1e4, 8, YarnScaling(2.0, 64, 1.5)).attention_factor == 1.5
