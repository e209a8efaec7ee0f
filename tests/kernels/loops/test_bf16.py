from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="module")
def loop():
    """x float32 -> (x narrowed to bf16, that widened, exp(x)), by a loop as the kernels are."""
    from kernels.loops.bf16 import bf16_at, count_up, exp, float32_at, int64_at, narrow, widen
    from kernels.loops.team import Loop

    def body(arguments):
        a = int64_at(arguments, 6)
        size = a[1]
        x, out, back, powers = (
            float32_at(a[2], size),
            bf16_at(a[3], size),
            float32_at(a[4], size),
            float32_at(a[5], size),
        )
        if count_up(arguments) == 0:
            for i in range(size):
                out[i] = narrow(x[i])
                back[i] = widen(out[i])
                powers[i] = exp(x[i])

    compiled = Loop(body)

    def run(x):
        out, back, powers = torch.empty(len(x), dtype=torch.bfloat16), torch.empty(len(x)), torch.empty(len(x))
        compiled(False, len(x), x.data_ptr(), out.data_ptr(), back.data_ptr(), powers.data_ptr())
        return out, back, powers

    return run


def test_rounds_and_widens_as_torch_does(loop):
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)])
    special = torch.tensor([0.0, -0.0, 3.4e38, float("inf"), -float("inf"), 1e-40])
    x = torch.cat((torch.randn(1000) * 10, ties, special))
    out, back, _ = loop(x)
    assert torch.equal(out, x.bfloat16())
    assert torch.equal(back, x.bfloat16().float())
    assert loop(torch.tensor([float("nan")]))[0].isnan().all()


def test_exponential_is_close_and_keeps_nan(loop):
    for x, tolerance in ((torch.linspace(-87, 88, 100_003), 2e-5), (torch.linspace(-5, 5, 10_001), 1e-6)):
        relative = loop(x)[2].double() / x.double().exp() - 1
        assert relative.abs().max() < tolerance
    ends = loop(torch.tensor([-float("inf"), float("inf"), float("nan")]))[2]
    assert 0 <= ends[0] < 2e-38
    assert ends[1] > 1e38
    assert ends[2].isnan()
