"""Logits against transformers, fp32 on the CPU; so for all families that differ from Llama's by experts alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.models.model_config import parse_model_config
from service.models.registry import build_model
from tests.models.checkpoints import logits_of, mixtral, oracle, qwen2_moe, qwen3_moe
from tests.models.forward import logits
from tests.models.test_model_config import LEAST_FIELDS

VARIANTS = {
    "Mixtral": (mixtral, {}),
    "Mixtral under a window": (mixtral, {"sliding_window": 21, "num_experts_per_tok": 1}),
    "Qwen3-MoE": (qwen3_moe, {"norm_topk_prob": True}),
    "Qwen3-MoE, some layers": (qwen3_moe, {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "Qwen2-MoE": (qwen2_moe, {}),
    "Qwen2-MoE without biases": (qwen2_moe, {"qkv_bias": False, "norm_topk_prob": True}),
}


@pytest.mark.parametrize(("save", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(save, changes, tmp_path):
    folder = save(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=2e-4, rtol=2e-4)


def test_adapters_change_attention_alone():
    for name in ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "GptOssForCausalLM"):
        model = build_model(parse_model_config(LEAST_FIELDS[name]))
        changed = {part for block in model.block_linears() for linear in block for part in linear.names}
        kinds = {part.partition("layers.")[2].partition(".")[2] for part in changed}
        assert kinds == {f"self_attn.{each}_proj" for each in "qkvo"}


@pytest.mark.parametrize("save", [mixtral, qwen3_moe])
def test_experts_may_be_stacked_as_transformers_has_them_in_memory(save, tmp_path):
    folder = save(tmp_path)
    tokens = torch.randint(0, 301, (30,)).tolist()
    want = logits(folder, tokens)
    file = Path(folder) / "model.safetensors"
    assert any(".experts.3." in name for name in load_file(file))
    stacked = {name: tensor.contiguous() for name, tensor in oracle(folder).state_dict().items()}
    assert not any(".experts.3." in name for name in stacked)
    save_file(stacked, file, {"format": "pt"})
    assert torch.equal(logits(folder, tokens), want)
