from __future__ import annotations

import subprocess
import sys

WITHOUT_GLUON = """
import sys
sys.modules["triton.experimental"] = None
import torch
from kernels.int4_linear import int4_linear, takes
from tests.kernels.quantized_weights import random_weight
weight, exact = random_weight("int4", 8, 128, torch.bfloat16, group=128)
x = torch.randn(2, 128).bfloat16()
assert not takes(x, weight)
assert (int4_linear(x, weight).double() - x.double() @ exact.T).norm() < 0.01 * (x.double() @ exact.T).norm()
"""


def test_references_run_where_there_is_no_gluon():
    subprocess.run([sys.executable, "-c", WITHOUT_GLUON], check=True, timeout=60)
