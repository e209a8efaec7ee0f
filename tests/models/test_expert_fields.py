from __future__ import annotations

import pytest

from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields
from service.models.expert_fields import parse_experts

MXFP4 = {"quant_method": "mxfp4"}


def parsed(architecture, num_layers=4, **fields):
    return parse_experts(architecture, ConfigFields(fields, "config.json"), num_layers)


def test_dense_families_have_none():
    assert parsed("LlamaForCausalLM", num_experts=8) is None


def test_what_is_not_written_is_as_transformers_has_it():
    mixtral, qwen3 = parsed("MixtralForCausalLM"), parsed("Qwen3MoeForCausalLM")
    assert (mixtral.num_experts, mixtral.top_k, mixtral.intermediate_size, mixtral.renormalizes) == (8, 2, 14336, True)
    assert (qwen3.num_experts, qwen3.top_k, qwen3.intermediate_size, qwen3.renormalizes) == (128, 8, 768, False)
    gpt_oss = parsed("GptOssForCausalLM", quantization_config=MXFP4)
    assert (gpt_oss.clamp_limit, gpt_oss.clamp_alpha) == (7.0, 1.702) and gpt_oss.has_bias and gpt_oss.is_mxfp4


def test_layers_with_experts():
    assert parsed("Qwen3MoeForCausalLM").layers == (True,) * 4
    layers = parsed("Qwen2MoeForCausalLM", decoder_sparse_step=2, mlp_only_layers=[1]).layers
    assert layers == (False, False, False, True)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_both_names_of_the_number_of_experts(name):
    assert parsed("Qwen3MoeForCausalLM", **{name: 16}).num_experts == 16


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 exceeds the number of experts, 8"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": "1"}, "mlp_only_layers must be a list"),
        ("GptOssForCausalLM", {"hidden_size": 40, "quantization_config": MXFP4}, "hidden_size 40 or intermediate_size"),
        ("Qwen2MoeForCausalLM", {"quantization_config": {"quant_method": "fp8"}}, "is not supported for Qwen2Moe"),
        ("GptOssForCausalLM", {"quantization_config": {"quant_method": "awq"}}, "except for MXFP4; serve"),
    ],
)
def test_what_cannot_be_is_refused(architecture, fields, message):
    with pytest.raises(ModelLoadError, match=message):
        parsed(architecture, **fields)
