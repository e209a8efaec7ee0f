from __future__ import annotations

import pytest

from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields
from service.models.gemma_config import GEMMA, GEMMA_2, GEMMA_3, gemma_windows, parse_gemma
from service.models.model_config import parse_model_config

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 12}


def parse(architecture, **written):
    return parse_model_config({"architectures": [architecture], **SHAPE, **written})


def test_what_a_vision_models_text_part_leaves_out_is_as_transformers_has_it():
    config = parse(GEMMA_3, sliding_window=1024, rope_scaling={"factor": 8.0, "rope_type": "linear"})
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.max_position_embeddings, config.activation, config.tie_word_embeddings) == (
        131_072, "gelu_tanh", True,
    )  # fmt: skip
    assert config.sliding_windows == (*(1024,) * 5, None) * 2
    assert config.rope is not None and config.gemma is not None and config.gemma.local_rope is not None
    assert (config.rope.theta, config.rope.scaling.factor) == (1e6, 8.0)
    assert (config.gemma.local_rope.theta, config.gemma.local_rope.scaling) == (1e4, None)
    assert (config.gemma.attention_softcap, config.gemma.logit_softcap) == (None, None)
    assert config.gemma.attention_scale == 1 / 16


def test_caps_are_gemma_2s_unless_they_are_null():
    usual = parse(GEMMA_2).gemma
    assert (usual.attention_softcap, usual.logit_softcap) == (50.0, 30.0)
    without = parse(GEMMA_2, attn_logit_softcapping=None, final_logit_softcapping=20.0).gemma
    assert (without.attention_softcap, without.logit_softcap) == (None, 20.0)


def test_bases_of_both_kinds_of_layers_as_transformers_4_and_5_write_them():
    flat = parse(GEMMA_3, rope_theta=5e5, rope_local_base_freq=3e3)
    nested = parse(
        GEMMA_3,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
        },
    )
    assert flat.rope == nested.rope
    assert flat.gemma.local_rope == nested.gemma.local_rope
    assert (flat.rope.theta, flat.gemma.local_rope.theta) == (5e5, 3e3)


def test_an_early_gemmas_gelu_is_the_approximation():
    needed = {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 300}
    assert parse(GEMMA, hidden_act="gelu", **needed).activation == "gelu_tanh"
    assert parse(GEMMA, hidden_act="gelu", hidden_activation="gelu_pytorch_tanh", **needed).activation == "gelu_tanh"


def test_windows_by_the_pattern_or_by_name():
    fields = ConfigFields({"sliding_window": 7, "sliding_window_pattern": 3}, "config.json")
    assert gemma_windows(GEMMA_3, fields, 4) == (7, 7, None, 7)
    assert gemma_windows(GEMMA_2, fields, 4) == (7, None, 7, None)
    assert gemma_windows(GEMMA, fields, 2) == (None, None)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ({"hidden_activation": "mish"}, "hidden_activation 'mish'"),
    ],
    ids=str,
)
def test_faults_name_the_field(written, named):
    with pytest.raises(ModelLoadError, match=named):
        parse(GEMMA_3, **written)


def test_scores_of_the_first_gemma_are_scaled_by_the_heads_size():
    assert parse_gemma(GEMMA, ConfigFields({}, "config.json"), 64).attention_scale == 1 / 8
