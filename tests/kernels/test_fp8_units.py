from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from kernels import fp8_units as module
from kernels.fp8_rows import fp8_rows
from kernels.fp8_units import fp8_units_config, fp8_units_triton, takes
from kernels.skinny_linear import new_arrivals
from kernels.unit_parts import UnitsConfig
from tests.examples import spread
from tests.kernels.lanes import GPU
from tests.kernels.quantized_weights import random_weight
from tests.kernels.tolerances import assert_close

if importlib.util.find_spec("triton") is not None:
    from tests.kernels.sm90 import CUOBJDUMP, Launch, LaunchRecorder, compile_for_sm90

CONFIGS = [
    UnitsConfig(64, 64, 4, 7, block_k=256),
    UnitsConfig(128, 128, 8, 7),
    UnitsConfig(16, 64, 4, 6, 4),
    UnitsConfig(64, 64, 4, 4, 2, block_k=256),
    UnitsConfig(64, 128, 4, 5),
    UnitsConfig(128, 128, 8, 4, 2),
]


def case(device, rows, features, size):
    """Rows with scales of their own, a weight, and their product in fp64."""
    weight, exact = random_weight("fp8", features, size, torch.bfloat16, device)
    values, scales = fp8_rows((torch.randn(rows, size) * torch.rand(rows, 1) * 9).to(device).bfloat16())
    return values, scales, weight, values.double() * scales.double() @ exact.T


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("rows", [0, 1, 17, 64, 130])
@pytest.mark.parametrize(("features", "size"), [(16, 16), (176, 400), (300, 2048)])
def test_follows_the_formula(features, size, rows, config, lane):
    """Sums of the matrix units are short of fp32's: of a large K by less than x was rounded by."""
    x, scales, weight, want = case(lane.device, rows, features, size)
    bias, arrivals = torch.randn(features).to(lane.device, torch.bfloat16), new_arrivals(2048, x.device)
    for counts in (None, arrivals, arrivals):
        got = fp8_units_triton(x, scales, weight, bias, counts, config)
        if size <= 400:
            assert_close(got, want + bias.double())
        else:
            assert (got.double() - bias.double() - want).norm() <= 0.01 * want.norm()
    assert not arrivals.any()


def test_what_was_timed_goes_by_it():
    """And the tiles of one weight are the same from 17 rows to 64, and above."""
    for features, size in ((6144, 4096), (4096, 4096), (4096, 14336)):
        some, many = (fp8_units_config(n, features, size) for n in (64, 256))
        assert some == fp8_units_config(17, features, size) != many == fp8_units_config(65, features, size)
        assert some is not None and fp8_units_config(16, features, size) is None
    assert fp8_units_config(64, 28672, 4096) is fp8_units_config(64, 1024, 3072) is None


@pytest.mark.parametrize("lane", [GPU])
def test_what_is_laid_out_for_it(lane):
    x, _, weight, _ = case(lane.device, 4, 64, 256)
    assert takes(x, weight) and not takes(x.cpu(), weight) and not takes(x.bfloat16(), weight)
    assert not takes(x, random_weight("fp8 groups", 64, 256, torch.bfloat16, lane.device)[0])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("config", spread(CONFIGS, 2))
def test_units_are_waited_for_once_a_stage(config, monkeypatch, tmp_path):
    if not CUOBJDUMP.exists():
        pytest.skip("this Triton comes without NVIDIA's tools")
    recorder = LaunchRecorder(module._fp8_units_kernel)
    monkeypatch.setattr(module, "_fp8_units_kernel", recorder)
    weight, _ = random_weight("fp8", 4096, 1024, torch.bfloat16)
    x, scales = torch.zeros(config.block_m, 1024).to(torch.float8_e4m3fn), torch.ones(config.block_m, 1)
    fp8_units_triton(x, scales, weight, None, new_arrivals(4096, x.device), config)
    (launch,) = recorder.launches
    options = {"enable_fp_fusion": True, **launch.options, "PDL": True}
    compiled = compile_for_sm90(Launch(launch.kernel, launch.grid, launch.args, options), tmp_path)
    assert "cp.async.bulk.tensor" in compiled.ptx and "e4m3.e4m3" in compiled.ptx
    assert compiled.spills_in_loops == 0 and compiled.waits_for_units == 2
