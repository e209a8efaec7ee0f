from __future__ import annotations

import json

import pytest
from transformers import LlamaConfig, Qwen3Config

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


def parse(**changes):
    return parse_model_config({**FIELDS, **changes})


def test_the_least_that_a_config_may_say():
    config = parse()
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 16, 2048)
    assert (config.rms_norm_eps, config.rope.theta, config.rope.scaling) == (1e-6, 10_000.0, None)
    assert not config.tie_word_embeddings
    assert not config.attention_bias
    assert not config.mlp_bias
    assert config.checkpoint_dtype == "float32"
    assert config.eos_token_ids == frozenset()


@pytest.mark.parametrize("make", [LlamaConfig, Qwen3Config])
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
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert (config.rope.theta, config.rope.scaling) == (5e5, LinearScaling(2.0))
    assert config.tie_word_embeddings
    assert config.checkpoint_dtype == "bfloat16"
    assert (config.eos_token_ids, config.bos_token_id) == (frozenset({5, 6}), 4)


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
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
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


def test_folder_without_a_config(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json: not in the model folder"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps("x")])
def test_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model_config(tmp_path)
