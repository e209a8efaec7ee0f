"""`loadtest.bench kernels`: each kernel alone, beside the rates of a copy and of a GEMM on the same device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch

from loadtest.bench.attention_kernels import measure_decode, measure_prefill, print_decode, print_prefill
from loadtest.bench.device_limits import measure_device
from loadtest.bench.launch_timing import bench_device
from loadtest.bench.report import print_json
from loadtest.bench.small_kernels import measure_kernels, print_kernels

DECODE, PREFILL = "paged_attention_decode", "paged_attention_prefill"


@torch.inference_mode()
def bench_kernels(names: Sequence[str]) -> int:
    """Measure the kernels whose name begins with one of `names`; all if `names` is empty. Returns the exit status.

    On a CPU the reference implementations are measured, which the service uses there.
    """
    limits = measure_device(str(bench_device()), "bfloat16")
    print(f"{limits}; torch {torch.__version__}, bf16\n", flush=True)
    small = measure_kernels(names, limits)
    if small:
        print_kernels(small)
    decode = measure_decode(limits) if _is_wanted(DECODE, names) else []
    prefill = measure_prefill(limits) if _is_wanted(PREFILL, names) else []
    if decode:
        print()
        print_decode(decode)
    if prefill:
        print()
        print_prefill(prefill)
    print_json(
        {
            "bench": "kernels",
            "limits": asdict(limits),
            "kernels": [asdict(result) for result in small],
            DECODE: [asdict(result) for result in decode],
            PREFILL: [asdict(result) for result in prefill],
        }
    )
    return 0


def _is_wanted(name: str, names: Sequence[str]) -> bool:
    return not names or name.startswith(tuple(names))
