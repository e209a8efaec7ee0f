from __future__ import annotations

import json

import pytest
from transformers import (
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    OPTConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from service.errors import ModelLoadError
from service.layers.rope_config import LinearScaling
from service.models.model_config import load_model_config, parse_model_config

FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
OPT_FIELDS = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GPT2_FIELDS = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4}
MOE_FIELDS = {**FIELDS, "num_experts": 5, "num_local_experts": 5, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
LEAST_FIELDS = {
    "LlamaForCausalLM": FIELDS,
    "MistralForCausalLM": {**FIELDS, "architectures": ["MistralForCausalLM"]},
    "Qwen2ForCausalLM": {**FIELDS, "architectures": ["Qwen2ForCausalLM"]},
    "Qwen3ForCausalLM": {**FIELDS, "architectures": ["Qwen3ForCausalLM"]},
    "MixtralForCausalLM": {**MOE_FIELDS, "architectures": ["MixtralForCausalLM"]},
    "Qwen2MoeForCausalLM": {**MOE_FIELDS, "architectures": ["Qwen2MoeForCausalLM"]},
    "Qwen3MoeForCausalLM": {**MOE_FIELDS, "architectures": ["Qwen3MoeForCausalLM"]},
    "GptOssForCausalLM": {**MOE_FIELDS, "architectures": ["GptOssForCausalLM"]},
    "OlmoeForCausalLM": {**MOE_FIELDS, "architectures": ["OlmoeForCausalLM"]},
    "Phi3ForCausalLM": {**FIELDS, "architectures": ["Phi3ForCausalLM"]},
    "GemmaForCausalLM": {**FIELDS, "num_key_value_heads": 4, "architectures": ["GemmaForCausalLM"]},
    "Gemma2ForCausalLM": {**FIELDS, "architectures": ["Gemma2ForCausalLM"]},
    "Gemma3ForCausalLM": {**FIELDS, "architectures": ["Gemma3ForCausalLM"]},
    "OPTForCausalLM": OPT_FIELDS,
    "GPT2LMHeadModel": GPT2_FIELDS,
}
"""The least that a config of each architecture may say."""


def parse(**changes):
    return parse_model_config({**FIELDS, **changes})


def test_the_least_that_a_config_may_say():
    config = parse()
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 16, 2048)
    assert (config.norm_eps, config.rope.theta, config.rope.scaling) == (1e-6, 10_000.0, None)
    assert not config.tie_word_embeddings
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias)
    assert config.sliding_windows == (None, None)
    assert config.checkpoint_dtype == "float32"
    assert config.eos_token_ids == frozenset()


MAKERS = [
    LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig, GptOssConfig,
    OlmoeConfig,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_reads_what_transformers_writes(make, tmp_path):
    theirs = make(
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        eos_token_id=[5, 6],
        bos_token_id=4,
        dtype="bfloat16",
    )
    theirs.architectures = [make.__name__.replace("Config", "ForCausalLM")]
    theirs.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    assert config.architecture == theirs.architectures[0]
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (96, 6, 3, 20)
    assert config.intermediate_size == theirs.intermediate_size
    if (num_experts := getattr(theirs, "num_experts", None)) is not None:
        sizes = config.experts.num_experts, config.experts.top_k, config.experts.intermediate_size
        size = getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)
        assert sizes == (num_experts, theirs.num_experts_per_tok, size)
    assert config.norm_eps == theirs.rms_norm_eps
    assert (config.rope.theta, config.rope.scaling) == (5e5, LinearScaling(2.0))
    assert config.tie_word_embeddings
    assert config.checkpoint_dtype == "bfloat16"
    assert (config.eos_token_ids, config.bos_token_id) == (frozenset({5, 6}), 4)


def test_reads_what_transformers_writes_for_opt(tmp_path):
    theirs = OPTConfig(hidden_size=96, ffn_dim=200, num_attention_heads=6, word_embed_proj_dim=48, dtype="float16")
    theirs.architectures = ["OPTForCausalLM"]
    theirs.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    assert (config.hidden_size, config.embedding_size, config.intermediate_size) == (96, 48, 200)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.rope) == (6, 6, 16, None)
    assert (config.activation, config.norm_eps, config.norms_first, config.has_final_norm) == ("relu", 1e-5, True, True)
    assert config.tie_word_embeddings
    assert config.qkv_bias and config.output_bias and config.mlp_bias
    assert config.longest_context == 2048
    assert (config.checkpoint_dtype, config.eos_token_ids, config.bos_token_id) == ("float16", frozenset({2}), 2)


def test_reads_what_transformers_writes_for_gpt2(tmp_path):
    theirs = GPT2Config(n_embd=96, n_head=6, n_layer=3, n_positions=200)
    theirs.architectures = ["GPT2LMHeadModel"]
    theirs.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    assert (config.hidden_size, config.embedding_size, config.intermediate_size) == (96, 96, 384)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 6, 6, 16)
    assert (config.activation, config.norm_eps, config.longest_context) == ("gelu_tanh", 1e-5, 200)
    assert config.tie_word_embeddings
    assert config.rope is None
    assert (config.eos_token_ids, config.bos_token_id) == (frozenset({50256}), 50256)


@pytest.mark.parametrize("name", LEAST_FIELDS)
def test_every_architecture_has_its_least_config(name):
    config = parse_model_config(LEAST_FIELDS[name])
    assert (config.architecture, config.num_layers, len(config.sliding_windows)) == (name, 2, 2)


@pytest.mark.parametrize(
    ("name", "qkv_bias", "output_bias"),
    [
        ("LlamaForCausalLM", True, True),
        ("Qwen3ForCausalLM", True, True),
        ("MistralForCausalLM", False, False),
        ("Qwen2ForCausalLM", True, False),
        ("MixtralForCausalLM", False, False),
        ("Qwen2MoeForCausalLM", True, False),
        ("Qwen3MoeForCausalLM", True, True),
        ("GptOssForCausalLM", True, True),
    ],
)
def test_attention_bias_is_read_of_those_whose_transformers_reads_it(name, qkv_bias, output_bias):
    config = parse_model_config({**LEAST_FIELDS[name], "attention_bias": True})
    assert (config.qkv_bias, config.output_bias) == (qkv_bias, output_bias)


def test_only_dynamic_scaling_reaches_beyond_the_written_context():
    assert parse(max_position_embeddings=512).longest_context == 512
    scaled = parse(max_position_embeddings=512, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    assert scaled.longest_context == 2048


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"architectures": []}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"architectures": ["GptBigForCausalLM"]}, "'GptBigForCausalLM' is not supported; supported: LlamaForCausalLM"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not supported; supported: silu"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"torch_dtype": "int8"}, "dtype 'int8'"),
    ],
    ids=str,
)
def test_faults_name_the_field(changes, named):
    with pytest.raises(ModelLoadError, match=named):
        parse(**changes)


@pytest.mark.parametrize(
    ("fields", "changes", "named"),
    [
        (OPT_FIELDS, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine False is not supported"),
        (OPT_FIELDS, {"num_attention_heads": 5}, "hidden_size 64 is not a multiple of num_attention_heads 5"),
        (OPT_FIELDS, {"activation_function": "tanh"}, "activation_function 'tanh'"),
        (OPT_FIELDS, {"ffn_dim": None}, "ffn_dim is missing"),
        (GPT2_FIELDS, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        (GPT2_FIELDS, {"scale_attn_weights": False}, "scale_attn_weights False"),
        (GPT2_FIELDS, {"add_cross_attention": True}, "add_cross_attention True"),
        (GPT2_FIELDS, {"n_head": 7}, "n_embd 64 is not a multiple of n_head 7"),
    ],
    ids=str,
)
def test_faults_of_the_other_families_name_the_field(fields, changes, named):
    with pytest.raises(ModelLoadError, match=named):
        parse_model_config({**fields, **changes})


def test_folder_without_a_config(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json: is not in the model folder"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps("x")])
def test_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model_config(tmp_path)
