from __future__ import annotations

import subprocess
import sys

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from kernels.paged_attention_decode import decode_batch, paged_attention_decode
int32 = lambda *x: torch.tensor(x, dtype=torch.int32)
cache, query, out = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 8), torch.empty(1, 2, 8)
paged_attention_decode(query, cache, cache, decode_batch(int32([0]), int32(1), 4), 1.0, out)
assert torch.allclose(out, cache[0, 0].expand(2, 8))
"""


def test_references_run_where_there_is_no_triton():
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True, timeout=60)
