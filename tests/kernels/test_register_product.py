from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from kernels import register_product
from kernels.linear_add_norm import DeferredNorm, linear_add_norm_triton
from kernels.norm_linear import norm_linear_triton
from kernels.quantized_weight import QuantizedWeight
from kernels.register_product import takes
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import new_arrivals, skinny_launch, skinny_linear_triton
from tests.kernels import warp_emulator
from tests.kernels.lanes import GPU, INTERPRET
from tests.kernels.quantized_weights import KINDS, random_weight
from tests.kernels.tolerances import assert_close

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="its text is made for Triton")
EPS = 1e-5


def words(numbers: torch.Tensor) -> np.ndarray:
    return numbers.contiguous().numpy().view(np.uint32)


def bf16_words(numbers: torch.Tensor) -> np.ndarray:
    return words(numbers.bfloat16().view(torch.int16))


def pairs(x: np.ndarray, first: int, *, is_scaled: bool) -> list[np.ndarray]:
    """Even and odd elements of 16 neighbours a thread, from the words that the kernel loads."""
    place = np.arange(16) // 4 * 8 + np.arange(16) % 4 + first
    return warp_emulator.run(register_product._pairs_assembly(is_scaled), [x[:, place], x[:, place + 4]], 2)


def as_rows(fragments: np.ndarray) -> np.ndarray:
    """[8, 16] as threads have it -> [16, 8]."""
    numbers = fragments.view(np.float32).reshape(1, 8, 4, 2, 2)
    return numbers.transpose(0, 3, 1, 2, 4).reshape(16, 8)


@needs_triton
def test_a_warp_multiplies_fp8_as_it_lies():
    weight, _ = random_weight("fp8", 16, 64, torch.bfloat16)
    elements = weight.elements.clone()
    elements[3, :16] = torch.arange(16, dtype=torch.uint8).view(torch.float8_e4m3fn)  # zero and subnormal ones
    x = torch.randn(8, 64).bfloat16()
    all_words = words(elements.view(torch.uint8))
    even, odd = pairs(bf16_words(x), 0, is_scaled=True)
    sums = np.full((8, 16), np.float32(2.0**-60)).view(np.uint32)
    assembly = register_product._fp8_assembly()
    (got,) = warp_emulator.run(assembly, [all_words[:8], all_words[8:], even, odd, sums], 1)
    want = elements.double() @ x.double().T + 1
    torch.testing.assert_close(torch.tensor(as_rows(got) * 2.0**60).double(), want, rtol=1e-5, atol=1e-4)


@needs_triton
def test_a_warp_multiplies_int4_as_it_lies_and_sums_x():
    weight, _ = random_weight("int4", 16, 128, torch.bfloat16, group=128)
    x = torch.randn(8, 128).bfloat16()
    all_words = words(weight.elements)
    of_x = pairs(bf16_words(x), 0, is_scaled=False) + pairs(bf16_words(x), 32, is_scaled=False)
    (got,) = warp_emulator.run(register_product._int4_assembly(), [all_words[:8], all_words[8:], *of_x], 1)
    (sums,) = warp_emulator.run(register_product._sums_assembly(), of_x, 1)
    plain = QuantizedWeight(weight.elements, torch.ones(16, 1), torch.zeros(16, 1, dtype=torch.uint8), torch.float32)
    want = (plain.dequantized().double() + 128) @ x.double().T
    torch.testing.assert_close(torch.tensor(as_rows(got)).double(), want, rtol=1e-5, atol=1e-2)
    of_rows = x.double().sum(1).expand(16, 8)
    torch.testing.assert_close(torch.tensor(as_rows(sums)).double(), of_rows, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "size", "group", "is_taken"),
    [
        ("fp8", 64, 64, True),
        ("fp8", 48, 64, False),
        ("fp8 groups", 256, 64, True),
        ("fp8 groups", 256, 32, False),
        ("int4", 256, 128, True),
        ("int4", 256, 64, False),
        ("int4 channels", 384, 0, True),
        ("int4 channels", 320, 0, False),
    ],
)
def test_what_is_laid_out_for_it(kind, size, group, is_taken):
    weight, _ = random_weight(kind, 8, size, torch.bfloat16, group=group)
    x = torch.zeros(8, size, dtype=torch.bfloat16)
    assert takes(x, weight) is takes(x[:1], weight) is is_taken
    assert not takes(x.float(), weight) and not takes(x[:0], weight)
    assert not takes(torch.zeros(9, size, dtype=torch.bfloat16), weight)


def test_rows_that_begin_anywhere_are_not_for_it():
    weight, _ = random_weight("fp8", 8, 64, torch.bfloat16)
    packed = torch.zeros(9, 72, dtype=torch.bfloat16)
    assert not takes(packed[:4, :64], weight)
    assert not takes(torch.zeros(4 * 64 + 1, dtype=torch.bfloat16)[1:].view(4, 64), weight)


@needs_triton
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_features", [64, 4096, 6144, 13000])
def test_up_to_eight_rows_are_for_it(num_features, kind):
    weight, _ = random_weight(kind, num_features, 256, torch.bfloat16, group=128)
    x, arrivals = torch.zeros(9, 256, dtype=torch.bfloat16), new_arrivals(num_features, torch.device("cpu"))
    launches = [skinny_launch(x[:n], weight, arrivals, None) for n in (1, 8, 9)]
    one, eight, nine = (launch.constants for launch in launches)
    assert one == eight and one["WARP_TILES"] > 0 and nine["WARP_TILES"] == 0
    assert skinny_launch(x.float(), weight, arrivals, None).constants["WARP_TILES"] == 0


def config_of(weight, num_splits=4):
    return SkinnyConfig(128, 256 if weight.is_int4 else 128, 4, 1, num_splits, warp_tiles=2)


def quantized(kind, features, size):
    return random_weight(kind, features, size, torch.bfloat16, "cuda", group=128)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("features", "size"), [(1, 128), (100, 256), (300, 1152), (64, 3072)])
def test_follows_the_formula(features, size, rows, kind, lane):
    weight, exact = quantized(kind, features, size)
    x, bias = torch.randn(rows, size).cuda().bfloat16(), torch.randn(features).cuda().bfloat16()
    assert takes(x, weight)
    arrivals = new_arrivals(features, x.device)
    for given, counts in ((None, None), (bias, arrivals)):
        want = x.double() @ exact.T
        got = skinny_linear_triton(x, weight, given, counts, config_of(weight))
        assert_close(got, want if given is None else want + given.double())
    assert not arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("warps", "warp_tiles", "k_warps", "turn", "stages"),
    [(1, 2, 1, 1, 1), (2, 2, 1, 4, 1), (4, 1, 1, 2, 3), (2, 1, 1, 1, 2), (4, 2, 4, 2, 3), (8, 1, 2, 1, 1)],
)
def test_tiles_of_any_form(warps, warp_tiles, k_warps, turn, stages, kind, lane):
    weight, exact = quantized(kind, 200, 1152)
    x, arrivals = torch.randn(5, 1152).cuda().bfloat16(), new_arrivals(200, torch.device("cuda"))
    block_k = turn * (128 if weight.is_int4 else 64)
    for num_splits in (1, 3, 16):
        block_n = 16 * warps * warp_tiles // k_warps
        config = SkinnyConfig(block_n, block_k, warps, stages, num_splits, warp_tiles, k_warps)
        for _ in range(2):
            assert_close(skinny_linear_triton(x, weight, None, arrivals, config), x.double() @ exact.T)
            assert not arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others(kind, lane):
    weight, _ = quantized(kind, 200, 1152)
    x, arrivals = torch.randn(8, 1152).cuda().bfloat16(), new_arrivals(200, torch.device("cuda"))
    for config in (config_of(weight), None):
        together = skinny_linear_triton(x, weight, None, arrivals, config)
        for row in (0, 3, 7):
            alone = skinny_linear_triton(x[row : row + 1], weight, None, arrivals, config)
            assert torch.equal(alone, together[row : row + 1])


@pytest.mark.parametrize("lane", [GPU])
def test_all_elements_of_fp8_are_known(lane):
    """Those that are no NaN, by large and by small numbers."""
    elements = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    elements = torch.where(elements.float().isnan(), 0.0, elements.float()).to(torch.float8_e4m3fn).cuda()
    ones = torch.ones(256, 1, device="cuda")
    weight = QuantizedWeight(elements[:, None].expand(256, 64).contiguous(), ones, None, torch.bfloat16)
    for place, value in ((0, 1.0), (33, 2.0**-20), (63, 1000.0)):
        x = torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16)
        x[1, place] = value
        got = skinny_linear_triton(x, weight, None, None, config_of(weight))
        assert torch.equal(got[1], (elements.float() * value).bfloat16()) and not got[0].any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 8])
def test_with_residual_and_norm_and_behind_them(rows, kind, lane):
    first, exact = quantized(kind, 256, 1152)
    x, residual, norm_weight = (torch.randn(*shape).cuda().bfloat16() for shape in ((rows, 1152), (rows, 256), (256,)))
    arrivals = new_arrivals(600, torch.device("cuda"))
    normed, total = linear_add_norm_triton(x, first, None, residual, norm_weight, EPS, arrivals, config_of(first))
    assert_close(total, x.double() @ exact.T + residual.double())
    assert_close(normed.weighted, total.double() * norm_weight.double())
    squares = normed.squares[:, :rows].double().sum(0)
    torch.testing.assert_close(squares, total.double().pow(2).sum(-1), atol=1e-5, rtol=1e-5)
    for gated in (False, True):
        second, exact = quantized(kind, 300, 256)
        divided = normed.weighted.double() / (squares / 256 + EPS).sqrt()[:, None]
        want = divided @ exact.T
        if gated:
            gate, up = want.chunk(2, -1)
            want = gate * gate.sigmoid() * up
        got = norm_linear_triton(normed, second, None, arrivals, gated, config_of(second))
        assert_close(got, want)
    assert not arrivals.any()


@pytest.mark.some(3)
@pytest.mark.parametrize("lane", [INTERPRET])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_tables_choose_by_emulated_warps(kind, lane, monkeypatch):
    """Alone, with residual and norm, and behind them, gated and not."""
    warp_emulator.in_the_interpreter(monkeypatch)
    arrivals = new_arrivals(200, torch.device("cpu"))
    first, exact = random_weight(kind, 40, 256, torch.bfloat16, group=128)
    x, residual, norm_weight = (torch.randn(*shape).bfloat16() for shape in ((3, 256), (3, 40), (40,)))
    assert takes(x, first)
    product = x.double() @ exact.T
    assert_close(skinny_linear_triton(x, first, None, arrivals), product)
    _, total = linear_add_norm_triton(x, first, None, residual, norm_weight, EPS, arrivals)
    assert_close(total, product + residual.double())
    squares = torch.rand(4, 8) * 256
    divided = x.double() / (squares[:, :3].double().sum(0) / 256 + EPS).sqrt()[:, None]
    gate, up = (divided @ exact.T).chunk(2, -1)
    for gated, want in ((False, divided @ exact.T), (True, gate * gate.sigmoid() * up)):
        assert_close(norm_linear_triton(DeferredNorm(x, squares, EPS), first, None, arrivals, gated), want)
    assert not arrivals.any()


@pytest.mark.each_once
@pytest.mark.parametrize("lane", [INTERPRET])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stages", "warp_tiles", "k_warps", "turn"), [(2, 1, 2, 2), (3, 2, 1, 1), (3, 1, 2, 2)])
def test_words_asked_for_ahead_by_emulated_warps(stages, warp_tiles, k_warps, turn, kind, lane, monkeypatch):
    warp_emulator.in_the_interpreter(monkeypatch)
    arrivals = new_arrivals(200, torch.device("cpu"))
    weight, exact = random_weight(kind, 40, 640, torch.bfloat16, group=128)
    x = torch.randn(3, 640).bfloat16()
    block_k, block_n = turn * (128 if weight.is_int4 else 64), 64 * warp_tiles // k_warps
    for num_splits in (1, 3):
        config = SkinnyConfig(block_n, block_k, 4, stages, num_splits, warp_tiles, k_warps)
        assert_close(skinny_linear_triton(x, weight, None, arrivals, config), x.double() @ exact.T)
