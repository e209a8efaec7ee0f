"""Logits against transformers, fp32 on the CPU, for each variant among the published checkpoints."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.checkpoints import logits_of, opt, oracle
from tests.models.forward import logits

VARIANTS = {
    "125m and most": {},
    "350m: norms last, narrow embeddings": {"do_layer_norm_before": False, "word_embed_proj_dim": 48},
    "norms last": {"do_layer_norm_before": False},
    "narrow embeddings, norms first": {"word_embed_proj_dim": 48},
    "before the final norm was found missing": {"_remove_final_layer_norm": True},
    "untied": {"tie_word_embeddings": False},
    "no biases, gelu": {"enable_bias": False, "activation_function": "gelu"},
    "head_dim 80": {"hidden_size": 160, "num_attention_heads": 2, "word_embed_proj_dim": 160},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = opt(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


def test_names_without_the_prefix_and_with_a_head(tmp_path):
    """As older checkpoints are, of the stack alone."""
    folder = opt(tmp_path)
    tokens = torch.randint(0, 301, (20,)).tolist()
    want = logits(folder, tokens)
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    tensors["lm_head.weight"] = tensors["decoder.embed_tokens.weight"].clone()
    tensors["decoder.version"] = torch.tensor([3.0])
    save_file(tensors, file)
    assert torch.equal(logits(folder, tokens), want)
