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
