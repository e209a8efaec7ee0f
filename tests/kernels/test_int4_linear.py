from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch

from kernels import int4_linear as module
from kernels.int4_linear import int4_linear, int4_linear_triton, takes
from kernels.quantized_weight import unpack_int4
from kernels.skinny_linear import new_arrivals
from kernels.unit_parts import UnitsConfig
from tests.examples import spread
from tests.kernels import warp_emulator
from tests.kernels.lanes import GPU, REFERENCE
from tests.kernels.quantized_weights import random_weight
from tests.kernels.tolerances import assert_close

if importlib.util.find_spec("triton") is not None:
    from tests.kernels.sm90 import CUOBJDUMP, Launch, LaunchRecorder, compile_for_sm90

KINDS = ("int4", "int4 symmetric", "int4 channels")


def case(device, kind, rows, features, size, group=128):
    """Rows, a weight, and their product in fp64 with scales as the kernel has them."""
    weight, exact = random_weight(kind, features, size, torch.bfloat16, device, group=group)
    rounded = weight.scales.bfloat16().double() / weight.scales.double().clamp(min=1e-12)
    exact *= rounded.repeat_interleave(size // rounded.shape[1], 1)
    x = torch.randn(rows, size).to(device).bfloat16()
    return x, weight, x.double() @ exact.bfloat16().double().T


@pytest.mark.parametrize("half", [0, 1])
def test_words_become_the_numbers_of_a_half(half):
    """In the order that the kernel's reshaping and permutation make of what the assembly puts out."""
    weight, _ = random_weight("int4", 16, 128, torch.bfloat16, group=128)
    words = weight.elements.numpy().view(np.uint16).reshape(16, 4, 2, 4)
    pairs = [words[:, :, i].reshape(16, 16) for i in (0, 1)]
    first, last = warp_emulator.as_told(warp_emulator.run_each(module._numbers_assembly(4 * half), pairs, 2))
    both = torch.stack((first.view(16, 4, 2, 4), last.view(16, 4, 2, 4)), -1).permute(0, 1, 4, 3, 2).reshape(16, 64)
    assert torch.equal(both - 128, unpack_int4(weight.elements, 128)[:, 64 * half :][:, :64].double())


@pytest.mark.parametrize("lane", [REFERENCE, GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 17, 64, 130, 300])
@pytest.mark.parametrize(("features", "size"), [(16, 128), (176, 1152), (300, 2048)])
def test_follows_the_formula(features, size, rows, kind, lane):
    x, weight, want = case(lane.device, kind, rows, features, size)
    if lane.name == "reference":
        want = x.double() @ weight.dequantized().double().T
    bias = torch.randn(features).to(lane.device, torch.bfloat16)
    arrivals = new_arrivals(features, x.device)
    for given in (None, arrivals):
        assert_close(int4_linear(x, weight, bias, given), want + bias.double())
    assert not arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("group", [128, 384])
@pytest.mark.parametrize(
    ("block_m", "block_n", "warps", "stages"),
    [
        (16, 64, 4, 2),
        (32, 64, 4, 6),
        (64, 128, 4, 3),
        (64, 256, 8, 4),
        (128, 128, 8, 3),
        (128, 256, 8, 4),
        (256, 64, 4, 2),
    ],
)
def test_tiles_of_any_form(block_m, block_n, warps, stages, group, lane):
    """By more parts than there are chunks, too."""
    x, weight, want = case(lane.device, "int4", 150, 200, 1152, group)
    arrivals = new_arrivals(4096, x.device)
    for num_splits in (1, 2, 4, 20):
        config = UnitsConfig(block_m, block_n, warps, stages, num_splits)
        for _ in range(2):
            assert_close(int4_linear_triton(x, weight, None, arrivals, config), want)
            assert not arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [(1, 16), (17, 64), (65, 128), (129, 256), (257, 300)])
def test_a_row_does_not_depend_on_the_others(rows, lane):
    few, many = rows
    x, weight, _ = case(lane.device, "int4", many, 4096, 4096)
    arrivals = new_arrivals(4096, x.device)
    together = int4_linear(x, weight, None, arrivals)
    assert torch.equal(int4_linear(x[:few], weight, None, arrivals), together[:few])
    assert torch.equal(int4_linear(x[many - few :], weight, None, arrivals), together[many - few :])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [16, 64, 200, 512])
@pytest.mark.parametrize(("features", "size"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 3072)])
def test_whole_models_shapes(features, size, rows, lane):
    x, weight, want = case(lane.device, "int4 symmetric", rows, features, size)
    assert takes(x, weight)
    for arrivals in (None, new_arrivals(features, x.device)):
        got = int4_linear(x, weight, None, arrivals).double()
        assert (got - want).norm() < 0.003 * want.norm()


@pytest.mark.parametrize("lane", [GPU])
def test_what_is_laid_out_for_it(lane):
    x, weight, _ = case(lane.device, "int4", 4, 64, 256)
    assert takes(x, weight) and not takes(x.float(), weight) and not takes(x.cpu(), weight)
    assert not takes(torch.zeros(4 * 256 + 1, device=x.device, dtype=x.dtype)[1:].view(4, 256), weight)
    assert not takes(x, random_weight("int4", 64, 256, torch.bfloat16, lane.device, group=64)[0])
    assert not takes(x, random_weight("fp8", 64, 256, torch.bfloat16, lane.device)[0])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize(
    ("rows", "block_n", "warps", "splits"),
    spread([(256, 256, 8, 1), (64, 64, 4, 2), (64, 128, 8, 1), (256, 128, 8, 2), (16, 64, 4, 4)], 2),
)
def test_numbers_of_int4_are_made_while_the_units_multiply(rows, block_n, warps, splits, monkeypatch, tmp_path):
    """In registers, without a spill: nobody waits for the units but by their number of groups under way, two times a
    chunk, and once at the end. ptxas has them waited for after each instruction where it does not see through."""
    if not CUOBJDUMP.exists():
        pytest.skip("this Triton comes without NVIDIA's tools")
    recorder = LaunchRecorder(module._int4_linear_kernel)
    monkeypatch.setattr(module, "_int4_linear_kernel", recorder)
    weight, _ = random_weight("int4", 4096, 1024, torch.bfloat16, group=128)
    x = torch.zeros(rows, 1024, dtype=torch.bfloat16)
    config = UnitsConfig(min(rows, 128), block_n, warps, 4, splits)
    int4_linear_triton(x, weight, None, new_arrivals(4096, x.device), config)
    (launch,) = recorder.launches
    compiled = compile_for_sm90(
        Launch(launch.kernel, launch.grid, launch.args, {"enable_fp_fusion": True, **launch.options, "PDL": True}),
        tmp_path,
    )
    assert "cp.async.bulk.tensor" in compiled.ptx and compiled.spills_in_loops == 0
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.waits_for_units == 3
