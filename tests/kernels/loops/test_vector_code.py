from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="module")
def loop():
    """All of the instructions once, on 32 bf16 numbers x and y and 16 floats f."""
    from numba import types

    from kernels.loops.bf16 import count_up, float32_at, int64_at
    from kernels.loops.team import Loop
    from kernels.loops.vector_code import I64, vector_function

    def write(code, rounds, x, y, f, out, narrowed):
        assert rounds == 3, "a constant comes as a number"
        total = code.add_pair_products(code.floats(f), code.pairs(x), code.pairs(y))
        with code.repeated(I64(rounds), [total]) as again:
            again.result = [code.add_products(again.carried[0], code.widened(x), code.float_for_all(f, 4))]
        code.store_floats(again.result[0], out)
        code.store_narrowed(code.add_pair_products(code.zeros(), code.pairs(x), code.pair_for_all(y, 4)), narrowed)
        code.prefetch(x, 64)
        return code.sum_of(code.widened(y, 32))

    function = vector_function(write, types.float32)

    def body(arguments):
        a = int64_at(arguments, 8)
        if count_up(arguments) == 0:
            float32_at(a[7], 1)[0] = function(3, a[2], a[3], a[4], a[5], a[6])

    return Loop(body)


def test_each_instruction_does_what_it_says(loop):
    x, y, f = torch.randn(32).bfloat16(), torch.randn(32).bfloat16(), torch.randn(16)
    out, narrowed, total = torch.empty(16), torch.empty(16, dtype=torch.bfloat16), torch.empty(1)
    loop(False, 1, *(tensor.data_ptr() for tensor in (x, y, f, out, narrowed, total)))
    pairs = (x.float() * y.float()).view(16, 2).sum(1)
    torch.testing.assert_close(out, f + pairs + 3 * x[:16].float() * f[1])
    torch.testing.assert_close(narrowed, (x.float().view(16, 2) * y[2:4].float()).sum(1).bfloat16())
    torch.testing.assert_close(total[0], y[16:].float().sum())


@pytest.fixture(scope="module")
def floats_loop():
    """On 16 floats x and y: e^x, the larger, x without negative lanes behind the third, y[0] - 1 in all; max(x)."""
    from numba import types

    from kernels.loops.bf16 import count_up, int64_at
    from kernels.loops.team import Loop
    from kernels.loops.vector_code import F32, I32, I64, vector_function

    def write(code, x, y, out):
        left, right, builder = code.floats(x), code.floats(y), code.builder
        code.store_floats(code.exp(left), out)
        code.store_floats(code.larger(left, right), out, 64)
        is_early = builder.icmp_signed("<", code.lane_numbers(), code.ints_for_all(I64(3)))
        code.store_floats(builder.select(is_early, left, code.floats_for_all(-2.0)), out, 128)
        code.store_floats(code.for_all(builder.fsub(code.float_at(y), F32(1.0))), out, 192)
        code.store_float(code.largest_of(left), out, 256)
        return I32(0)

    function = vector_function(write, types.int32)

    def body(arguments):
        a = int64_at(arguments, 5)
        if count_up(arguments) == 0:
            function(a[2], a[3], a[4])

    return Loop(body)


def test_floats(floats_loop):
    x, y, out = torch.randn(16) * 20, torch.randn(16), torch.empty(65)
    x[3], y[4] = float("nan"), float("nan")
    floats_loop(False, 1, *(tensor.data_ptr() for tensor in (x, y, out)))
    powers, larger, chosen, minus_one = out[:64].view(4, 16)
    torch.testing.assert_close(powers, x.exp(), rtol=3e-6, atol=1e-30, equal_nan=True)
    expected = torch.where(x > y, x, y)
    torch.testing.assert_close(larger, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(chosen[:3], x[:3]) and (chosen[3:] == -2).all()
    torch.testing.assert_close(minus_one, (y[0] - 1).expand(16))
    assert out[64] == x[x == x].max()


def test_the_ends_of_the_exponential(floats_loop):
    inf = float("inf")
    x = torch.tensor([-inf, -1000.0, -104.0, -88.0, -87.0, 0.0, 88.0, 89.0, 1000.0, inf, *[0.0] * 6])
    out = torch.empty(65)
    floats_loop(False, 1, *(tensor.data_ptr() for tensor in (x, torch.zeros(16), out)))
    torch.testing.assert_close(out[:9], x[:9].exp(), rtol=3e-6, atol=1e-37)
    assert out[9].isnan() or out[9] == inf
