from __future__ import annotations

import pytest

from service.errors import ModelLoadError
from service.layers.rope_config import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from service.models.config_fields import ConfigFields
from service.models.rope_scaling import parse_rope


def parse(max_position_embeddings=2048, **written):
    return parse_rope(ConfigFields(written, "config.json"), 16, max_position_embeddings)


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


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("written", "want"), SCALINGS)
def test_scaling_under_either_name(name, written, want):
    rope = parse(max_position_embeddings=512, **{name: written}, rope_theta=2e4)
    assert rope.scaling == want
    assert rope.theta == 2e4


def test_theta_inside_the_parameters_comes_first():
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 1e6}, rope_theta=1.0).theta == 1e6


def test_yarn_infers_factor_and_attention_factor():
    scaling = parse(
        max_position_embeddings=512,
        rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 128},
    ).scaling
    assert scaling == YarnScaling(4.0, 128, pytest.approx(1.1386294))
    scaling = parse(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0},
    ).scaling
    assert scaling.attention_factor == pytest.approx((0.2 * 1.3862944 + 1) / (0.1 * 1.3862944 + 1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "another"}}, "rope_type 'another'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor must be a list of 8 numbers"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7}}, "short_factor must be a list of 8 numbers"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7 + [0]}}, "short_factor must be a positive number"),
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


def test_longrope_has_factors_of_each_pair_that_turns():
    fields = {
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2] * 6},
        "original_max_position_embeddings": 512,
        "partial_rotary_factor": 0.75,
    }
    rope = parse_rope(ConfigFields(fields, "config.json"), 16, 2048, turns_part=True)
    factor = pytest.approx(1.1055416)
    assert rope.rotary_dim == 12
    assert rope.scaling == LongRopeScaling((1.0,) * 6, (2.0,) * 6, 512, factor)
    assert rope.attention_factor == factor
    with pytest.raises(ModelLoadError, match=r"partial_rotary_factor 0\.19 of 16 dims is not a whole number of pairs"):
        parse_rope(ConfigFields({"partial_rotary_factor": 0.19}, "config.json"), 16, 2048, turns_part=True)
