from __future__ import annotations

import json

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, OPTConfig, Qwen2Config, Qwen3Config

from service.errors import ModelLoadError
from service.layers.rotary import DynamicScaling, LinearScaling, Llama3Scaling, YarnScaling
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
LEAST_FIELDS = {
    "LlamaForCausalLM": FIELDS,
    "MistralForCausalLM": {**FIELDS, "architectures": ["MistralForCausalLM"]},
    "Qwen2ForCausalLM": {**FIELDS, "architectures": ["Qwen2ForCausalLM"]},
    "Qwen3ForCausalLM": {**FIELDS, "architectures": ["Qwen3ForCausalLM"]},
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


@pytest.mark.parametrize("make", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
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


SLIDES = {"use_sliding_window": True, "sliding_window": 8}
WINDOWS = [
    ("MistralForCausalLM", {}, (4096, 4096)),
    ("MistralForCausalLM", {"sliding_window": 8}, (8, 8)),
    ("MistralForCausalLM", {"sliding_window": None}, (None, None)),
    ("Qwen2ForCausalLM", {"sliding_window": 8}, (None, None)),
    ("Qwen2ForCausalLM", SLIDES, (None, None)),  # from layer 28 on, if nothing is said
    ("Qwen2ForCausalLM", {**SLIDES, "max_window_layers": 1}, (None, 8)),
    ("Qwen3ForCausalLM", {**SLIDES, "max_window_layers": 0}, (8, 8)),
    ("Qwen3ForCausalLM", {**SLIDES, "layer_types": ["sliding_attention", "full_attention"]}, (8, None)),
    ("LlamaForCausalLM", {"layer_types": ["full_attention"] * 2}, (None, None)),
]


@pytest.mark.parametrize(("name", "changes", "want"), WINDOWS)
def test_which_layers_slide(name, changes, want):
    assert parse(architectures=[name], **changes).sliding_windows == want


SCALINGS = [
    ({"rope_type": "default"}, None),
    ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicScaling(2.0, 512)),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        Llama3Scaling(8.0, 1.0, 4.0, 512),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.0},
        YarnScaling(4.0, 128, 1.0),
    ),
]


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("written", "want"), SCALINGS)
def test_scaling_under_either_name(name, written, want):
    config = parse(max_position_embeddings=512, **{name: written}, rope_theta=2e4)
    assert config.rope.scaling == want
    assert config.rope.theta == 2e4


def test_theta_inside_the_parameters_comes_first():
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 1e6}, rope_theta=1.0).rope.theta == 1e6


def test_yarn_infers_factor_and_attention_factor():
    scaling = parse(
        max_position_embeddings=512,
        rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 128},
    ).rope.scaling
    assert scaling == YarnScaling(4.0, 128, pytest.approx(1.1386294))
    scaling = parse(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0},
    ).rope.scaling
    assert scaling.attention_factor == pytest.approx((0.2 * 1.3862944 + 1) / (0.1 * 1.3862944 + 1))


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
        ({"architectures": ["GptBigForCausalLM"]}, "'GptBigForCausalLM' is not served; known: LlamaForCausalLM, Mist"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not served; known: silu"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"layer_types": ["full_attention"]}, "layer_types must name"),
        ({"layer_types": "full_attention"}, "layer_types must name"),
        ({"layer_types": [{}, {}]}, "layer_types must name"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types must name"),
        ({"torch_dtype": "int8"}, "dtype 'int8'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
    ids=str,
)
def test_faults_name_the_field(changes, named):
    with pytest.raises(ModelLoadError, match=named):
        parse(**changes)


@pytest.mark.parametrize(
    ("fields", "changes", "named"),
    [
        (OPT_FIELDS, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine False is not served"),
        (OPT_FIELDS, {"num_attention_heads": 5}, "hidden_size 64 is no multiple of num_attention_heads 5"),
        (OPT_FIELDS, {"activation_function": "tanh"}, "activation_function 'tanh'"),
        (OPT_FIELDS, {"ffn_dim": None}, "ffn_dim is missing"),
        (GPT2_FIELDS, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        (GPT2_FIELDS, {"scale_attn_weights": False}, "scale_attn_weights False"),
        (GPT2_FIELDS, {"add_cross_attention": True}, "add_cross_attention True"),
        (GPT2_FIELDS, {"n_head": 7}, "n_embd 64 is no multiple of n_head 7"),
        (LEAST_FIELDS["MistralForCausalLM"], {"sliding_window": -1}, "sliding_window"),
        (LEAST_FIELDS["Qwen2ForCausalLM"], {**SLIDES, "max_window_layers": -1}, "max_window_layers"),
    ],
    ids=str,
)
def test_faults_of_the_other_families_name_the_field(fields, changes, named):
    with pytest.raises(ModelLoadError, match=named):
        parse_model_config({**fields, **changes})


def test_folder_without_a_config(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json: not in the model folder"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps("x")])
def test_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model_config(tmp_path)
