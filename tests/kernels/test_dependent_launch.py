from __future__ import annotations

import pytest
import torch

from kernels import silu_and_mul as op
from kernels.dependent_launch import dependent_launch
from kernels.graph_capture import capture_graph
from kernels.rms_norm import add_rms_norm, add_rms_norm_reference
from kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference
from tests.kernels.sm90 import Launch, LaunchRecorder, compile_to_ptx


def test_nothing_changes_without_a_gpu():
    assert dependent_launch(torch.device("cpu")) == {"PDL": False}


@pytest.mark.parametrize("pdl", [False, True])
def test_a_kernel_lets_the_next_one_come_and_waits(pdl, monkeypatch):
    recorder = LaunchRecorder(op._silu_and_mul_kernel)
    monkeypatch.setattr(op, "_silu_and_mul_kernel", recorder)
    op.silu_and_mul_triton(torch.zeros(2, 64, dtype=torch.bfloat16))
    recorded = recorder.launches[0]
    options = {**recorded.options, "PDL": pdl, "enable_fp_fusion": True}
    ptx = compile_to_ptx(Launch(recorded.kernel, recorded.grid, recorded.args, options))
    assert ("griddepcontrol.wait" in ptx) == ("griddepcontrol.launch_dependents" in ptx) == pdl
    if pdl:
        assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global")


@pytest.mark.gpu
def test_a_long_chain_in_a_graph_reads_what_was_written():
    """Every kernel depends on the one before it, over tensors of very different sizes."""
    device = torch.device("cuda")
    weight = torch.rand(4096, device=device) + 0.5
    x = torch.randn(64, 8192, device=device)

    def chain(silu, norm):
        y, residual = silu(x), torch.zeros(64, 4096, device=device)
        for _ in range(40):
            y, residual = norm(y, residual, weight, 1e-5)
            y = silu(torch.cat((y, y), dim=-1)) if silu is silu_and_mul_reference else silu(y.repeat(1, 2))
        return y

    with torch.inference_mode():
        chain(silu_and_mul, add_rms_norm)
        torch.cuda.synchronize()
        graph, out = capture_graph(lambda: chain(silu_and_mul, add_rms_norm), torch.cuda.Stream())
        for _ in range(20):
            x.normal_()
            out.fill_(float("nan"))
            graph.replay()
            want = chain(silu_and_mul_reference, add_rms_norm_reference)
            torch.testing.assert_close(out, want, atol=1e-3, rtol=1e-3)
