"""Logits against transformers, fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch

from service.errors import ModelLoadError
from service.models.model_config import parse_model_config
from tests.models.checkpoints import logits_of, olmoe, oracle
from tests.models.forward import logits
from tests.models.test_model_config import LEAST_FIELDS

VARIANTS = {
    "grouped queries": {},
    "multi-head, renormalized": {"num_key_value_heads": 4, "norm_topk_prob": True},
    "biases": {"attention_bias": True, "num_experts_per_tok": 1},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = olmoe(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


def test_clipped_projections_are_refused_by_name():
    with pytest.raises(ModelLoadError, match=r"clip_qkv 8\.0 is not supported"):
        parse_model_config({**LEAST_FIELDS["OlmoeForCausalLM"], "clip_qkv": 8.0})
