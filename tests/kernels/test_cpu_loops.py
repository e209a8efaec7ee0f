from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels import cpu_loops
from kernels.cpu_loops import loops_for
from kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference


def test_only_bf16_on_a_cpu_without_gradient():
    assert loops_for(torch.zeros(2)) is None
    assert loops_for(torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)) is None


@pytest.mark.parametrize("missing", ["numba", "OpenMP", "instructions"])
def test_without_them_the_references_run(missing, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: missing != "instructions")
    monkeypatch.setattr(cpu_loops, "has_openmp", lambda: missing != "OpenMP")
    monkeypatch.setattr(cpu_loops, "find_spec", lambda name: None if missing == "numba" else object())
    cpu_loops.cpu_loops.cache_clear()
    try:
        x = torch.randn(3, 8).bfloat16()
        assert loops_for(x) is None
        assert torch.equal(silu_and_mul(x), silu_and_mul_reference(x))
    finally:
        cpu_loops.cpu_loops.cache_clear()


IN_A_CHILD_EACH = """
import os, sys, torch, kernels.cpu_loops as loops

for setting in sys.argv[1:]:
    if not (child := os.fork()):
        name, _, value = setting.partition("=")
        os.environ[name] = value
        os._exit(loops.loops_for(torch.zeros(2).bfloat16()) is not None)
    assert os.waitpid(child, 0)[1] == 0, setting
"""


def test_where_numba_is_told_not_to_compile_such_loops_the_references_run():
    """Compiled all the same, they would end the process."""
    settings = ["NUMBA_DISABLE_JIT=1", "NUMBA_CPU_NAME=generic", "NUMBA_ENABLE_AVX=0"]
    subprocess.run([sys.executable, "-c", IN_A_CHILD_EACH, *settings], check=True)


def test_numba_is_not_imported_before_it_is_needed():
    code = "import sys, torch, kernels.rms_norm as r; x = torch.ones(2, 2); r.add_rms_norm(x, x, x[0], 1e-5)"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('numba' in sys.modules)"], check=True)
