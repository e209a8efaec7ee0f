"""transformers asks for a distribution called `kernels`; our folder of that name must not pass for it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import kernels

ROOT = Path(__file__).parents[2]


def test_kernels_has_no_version():
    assert not hasattr(kernels, "__version__")
    assert kernels.__doc__


def test_our_version_is_outside_the_window_in_which_transformers_would_use_it():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor, *_ = (int(part) for part in version.split("."))
    assert (major, minor) != (0, 18)


def test_transformers_runs_beside_our_kernels():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    logits = LlamaForCausalLM(config)(torch.tensor([[1, 2]])).logits
    assert logits.shape == (1, 2, 32)
