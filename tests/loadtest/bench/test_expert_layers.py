from __future__ import annotations

import pytest
import torch

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.expert_layers import SHAPES, ExpertResult, ExpertWork, configs, make_layer, measure, print_results
from loadtest.model_shapes import read_shape
from service.layers.experts_config import ExpertsConfig
from service.layers.mixture_of_experts import USUAL_NAMES
from service.models.model_config import parse_model_config

LIMITS = DeviceLimits("a device", 1e9, 1e12)


@pytest.fixture(scope="module")
def layer():
    return make_layer(64, ExpertsConfig((True,), 8, 2, 32), USUAL_NAMES)


def test_torch_computes_the_same(layer):
    work = ExpertWork(layer, 40)
    with torch.inference_mode():
        torch.testing.assert_close(layer(work.x), work.compute_by_torch(), atol=1e-3, rtol=2e-2)


def test_the_limit_is_that_of_the_experts_that_rows_went_to(layer):
    """One row reads 2 of 8 experts; of many rows all 8."""
    one, many = (ExpertWork(layer, n) for n in (1, 500))
    expert_bytes = 3 * 64 * 32 * 2
    assert one.limit_s(LIMITS) == pytest.approx((2 * expert_bytes + 2 * 64 * 2) / 1e9)
    assert many.limit_s(LIMITS) == pytest.approx((8 * expert_bytes + 500 * 2 * 64 * 2) / 1e9)
    compute_bound = DeviceLimits("a slow device", 1e12, 1e9)
    assert many.limit_s(compute_bound) == pytest.approx(500 * 2 * 2 * 3 * 64 * 32 / 1e9)


def test_weights_of_eight_bits_are_about_as_large_as_plain_ones(layer):
    small = make_layer(64, ExpertsConfig((True,), 8, 2, 32), USUAL_NAMES, is_fp8=True)
    x = torch.randn(20, 64).bfloat16()
    with torch.inference_mode():
        got, want = (each.weights[0].product(1, x).float().std() for each in (small, layer))
    assert 0.3 < got / want < 3


def test_measures_and_prints_a_line_a_point(layer, capsys):
    result = measure("tiny", layer, 3, LIMITS)
    assert 0 < result.seconds < 1 and 0 < result.torch_s < 1
    print_results([ExpertResult("tiny", 3, 10e-6, 5e-6, None)])
    assert capsys.readouterr().out.splitlines()[1].split() == "tiny 3 10.0 5.0 50 %".split()


def test_swept_configurations_are_of_every_block_and_all_different():
    swept = configs()
    assert len(set(swept)) == len(swept) < 200
    assert {c.block_m for c in swept} == {16, 32, 64, 128}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_are_models_with_experts(shape):
    config = parse_model_config(read_shape(shape))
    assert config.experts is not None and all(config.experts.layers)
