"""Logits against transformers, fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.checkpoints import gpt2, logits_of, oracle
from tests.models.forward import logits

VARIANTS = {
    "plain": {},
    "inner size of its own making": {"n_inner": None},
    "exact gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "silu"},
    "untied": {"tie_word_embeddings": False},
    "another eps": {"layer_norm_epsilon": 1e-2},
    "upcast attention, which ours always is": {"reorder_and_upcast_attn": True},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = gpt2(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_every_form_of_its_checkpoints(prefix, tmp_path):
    """With and without the prefix, with causal masks, with a tied head that was saved all the same."""
    folder = gpt2(tmp_path)
    tokens = torch.randint(0, 301, (20,)).tolist()
    want = logits(folder, tokens)
    file = folder / "model.safetensors"
    tensors = {prefix + name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    for layer in range(2):
        tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors[f"{prefix}wte.weight"].clone()
    save_file(tensors, file)
    assert torch.equal(logits(folder, tokens), want)
