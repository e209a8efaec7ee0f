"""Gemma, Gemma 2 and Gemma 3: logits against transformers, fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch

from service.models.registry import open_model
from tests.models.checkpoints import gemma, gemma2, gemma3, logits_of, oracle
from tests.models.forward import logits

TWO_BASES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
}
VARIANTS = {
    "gemma": (gemma, {}),
    "gemma, a head of its own": (gemma, {"tie_word_embeddings": False}),
    "gemma 2": (gemma2, {}),
    "gemma 2, no caps": (gemma2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma 2, a low cap of logits": (gemma2, {"final_logit_softcapping": 0.5}),
    "gemma 3": (gemma3, {}),
    "gemma 3, other bases": (gemma3, {"rope_parameters": TWO_BASES}),
    "gemma 3, the first layer sees all": (gemma3, {"layer_types": ["full_attention", "sliding_attention"]}),
}


@pytest.mark.parametrize(("make", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(make, changes, tmp_path):
    folder = make(tmp_path, **changes)
    tokens = torch.randint(0, 301, (120,)).tolist()
    want = logits_of(oracle(folder), tokens)
    torch.testing.assert_close(logits(folder, tokens), want, atol=2e-4, rtol=2e-4)
    rows = torch.tensor([119, 3])
    torch.testing.assert_close(logits(folder, tokens, rows=rows), want[rows], atol=2e-4, rtol=2e-4)


def test_embeddings_are_scaled_by_what_the_weights_dtype_makes_of_the_root(tmp_path):
    _, model = open_model(gemma2(tmp_path, hidden_size=60))
    model.finish_reading(torch.bfloat16)
    assert model._embedding_scale == torch.tensor(60**0.5).bfloat16().item() != 60**0.5
