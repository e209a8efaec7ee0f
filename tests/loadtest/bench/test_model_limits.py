from __future__ import annotations

import dataclasses

import pytest

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.model_limits import ModelCosts
from service.layers.linear import Linear
from service.layers.mixture_of_experts import MixtureOfExperts
from service.models.model_config import parse_model_config
from service.models.registry import build_model
from tests.models.test_model_config import LEAST_FIELDS

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
H200 = DeviceLimits("H200", 4.25e12, 690e12)


def costs_of(fields, itemsize=2):
    config = parse_model_config(fields)
    parameters = sum(p.numel() for p in build_model(config).parameters())
    kv_token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize
    return ModelCosts.of(config, parameters * itemsize, kv_token_bytes, itemsize)


@pytest.mark.parametrize("name", LEAST_FIELDS)
@pytest.mark.parametrize("tied", [False, True])
def test_matrices_are_what_every_step_multiplies_by(name, tied):
    fields = {**LEAST_FIELDS[name], "tie_word_embeddings": tied}
    model, config = build_model(parse_model_config(fields)), parse_model_config(fields)
    linears = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear))
    mixtures = [m for m in model.modules() if isinstance(m, MixtureOfExperts)]
    experts = sum(m.gate_up.numel() + m.down.numel() for m in mixtures)
    chosen = sum((m.gate_up.numel() + m.down.numel()) * m.config.top_k // m.config.num_experts for m in mixtures)
    head = config.vocab_size * config.embedding_size
    costs = costs_of(fields)
    vectors = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 1 or name.endswith("_bias"))
    two_rows = 2e-3  # OPT's positions begin at row 2
    assert costs.matrix_bytes == pytest.approx(2 * (linears + experts + head + vectors), rel=two_rows)
    assert costs.head_flops == 2 * head
    assert costs.token_flops == pytest.approx(2 * (linears + chosen + vectors), rel=two_rows)


def test_a_token_reads_the_experts_that_it_goes_to_and_a_batch_all_of_them():
    """Qwen3-30B-A3B by hand: 3.1e9 of 30.2e9 parameters beside the embedding are one token's."""
    costs = costs_of(QWEN3_30B_A3B)
    assert costs.matrix_bytes == pytest.approx(60.4e9, rel=1e-2)
    assert costs.read_bytes(1) == pytest.approx(6.1e9, rel=1e-2)
    assert costs.read_bytes(1000) == pytest.approx(costs.matrix_bytes, rel=1e-9)
    assert costs.token_flops + costs.head_flops == pytest.approx(costs.read_bytes(1), rel=1e-2)


def test_llama_8b_on_one_h200():
    """By hand: 15.0 GB of weights a step, 131,072 bytes a cached token, 14 GFLOP a prompt token."""
    costs = costs_of(LLAMA_8B)
    assert costs.matrix_bytes == pytest.approx(15.0e9, rel=1e-2)
    assert costs.kv_token_bytes == 131072
    assert costs.decode_step_s(H200, 1, 0) == pytest.approx(3.53e-3, rel=1e-2)
    assert costs.decode_step_s(H200, 1, 1000) - costs.decode_step_s(H200, 1, 0) == pytest.approx(30.8e-6, rel=1e-2)
    assert costs.kv_token_s(H200) == pytest.approx(30.8e-9, rel=1e-2)
    assert 300 * 2048 / costs.requests_s(H200, [(2048, 1)] * 300, 256) == pytest.approx(47.6e3, rel=2e-2)


def test_large_batches_are_bound_by_their_products():
    costs = costs_of(LLAMA_8B)
    assert costs.decode_step_s(H200, 64, 0) == costs.decode_step_s(H200, 1, 0)
    products_s = 512 * (costs.token_flops + costs.head_flops) / H200.flops_per_s
    assert costs.decode_step_s(H200, 512, 0) == products_s > costs.decode_step_s(H200, 1, 0)


def test_equal_requests_take_their_prefills_and_their_steps():
    costs = costs_of(LLAMA_8B)
    whole = costs.requests_s(H200, [(100, 11)] * 64, 64)
    prefills = costs.requests_s(H200, [(100, 1)] * 64, 64)
    assert whole - prefills == pytest.approx(10 * costs.decode_step_s(H200, 64, 105.5), rel=1e-9)
    halved = costs.requests_s(H200, [(100, 11)] * 64, 32)
    assert halved - prefills == pytest.approx(20 * costs.decode_step_s(H200, 32, 105.5), rel=1e-9)


def test_a_window_bounds_what_a_layer_sees():
    costs = dataclasses.replace(costs_of(LLAMA_8B), windows=(None, 100))
    assert costs.seen_tokens(80) == 80
    assert costs.seen_tokens(1000) == 550


def test_dtype_of_the_weights_decides_their_bytes():
    assert costs_of(LLAMA_8B, 4).matrix_bytes == 2 * costs_of(LLAMA_8B, 2).matrix_bytes
    assert costs_of(LLAMA_8B, 4).token_flops == costs_of(LLAMA_8B, 2).token_flops
