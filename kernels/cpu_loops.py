"""What computes an operation on a CPU: a compiled loop (kernels/loops), or torch, whose references are the plain twins.

A decode step of a small model is some 700 torch operations, most of which take longer to start than to compute. The
loops do the same with 120, on torch's own threads (kernels/loops/team.py). They support bf16 on processors with
AVX512-bf16, which is where a CPU serves bf16, and run without gradient. Torch does everything else.

numba is imported at the first such operation, which takes half a second, and compiles each loop once per machine.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from kernels.quantized_weight import Weight


class FewRowsLinear(Protocol):
    """A weight in the form that kernels/loops/few_rows_linear.py multiplies by. num_bytes: its memory."""

    num_inputs: int

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor: ...


class RecordedLoops(Protocol):
    """A recorded step that consists of loops only; each `replay` overwrites `result` (kernels/loops/recording.py)."""

    result: Tensor

    def replay(self) -> Tensor: ...


class Recorder(Protocol):
    """Makes recordings, of which one is replayed at a time."""

    def record(self, compute: Callable[[], Tensor]) -> RecordedLoops | None: ...


@dataclass(frozen=True, slots=True)
class CpuLoops:
    """The operations, each from the file of that name in kernels/loops, and the recorder."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    silu_and_mul: Callable[[Tensor], Tensor]
    rotary_and_cache: Callable[..., None]
    paged_attention_decode: Callable[..., None]
    paged_attention_prefill: Callable[..., None]
    takes_head_dim: Callable[[int], bool]
    few_rows_linear: Callable[[Weight], FewRowsLinear | None]
    few_rows_mxfp4: Callable[[Tensor, Tensor], FewRowsLinear | None]
    takes_weight: Callable[[int, int], bool]
    takes_int8: Callable[[int, int], bool]
    greedy_tokens: Callable[[Tensor], Tensor]
    lora_shrink: Callable[..., Tensor]
    lora_expand: Callable[..., None]
    new_recorder: Callable[[], Recorder]


def loops_for(x: Tensor) -> CpuLoops | None:
    """The loops for operations on this tensor. None: use torch, as for a tensor without memory (on the meta device)."""
    if x.dtype is not torch.bfloat16 or not x.is_cpu or x.requires_grad:
        return None
    return cpu_loops()


def has_openmp() -> bool:
    """Whether torch has loaded libgomp, on which the loops run."""
    return hasattr(ctypes.CDLL(None), "GOMP_parallel")


@functools.cache
def cpu_loops() -> CpuLoops | None:
    """None where they cannot run: without numba, torch's OpenMP runtime, or AVX512-bf16."""
    if find_spec("numba") is None or not has_openmp() or not torch.cpu._is_avx512_bf16_supported():
        return None
    if not _compiles_for_avx512_bf16():
        return None
    from kernels.loops import (
        few_rows_linear,
        greedy_tokens,
        lora_expand,
        lora_shrink,
        paged_attention_decode,
        paged_attention_prefill,
        paged_heads,
        recording,
        rms_norm,
        rotary_and_cache,
        silu_and_mul,
    )

    return CpuLoops(
        rms_norm=rms_norm.rms_norm,
        add_rms_norm=rms_norm.add_rms_norm,
        silu_and_mul=silu_and_mul.silu_and_mul,
        rotary_and_cache=rotary_and_cache.rotary_and_cache,
        paged_attention_decode=paged_attention_decode.paged_attention_decode,
        paged_attention_prefill=paged_attention_prefill.paged_attention_prefill,
        takes_head_dim=paged_heads.takes_head_dim,
        few_rows_linear=few_rows_linear.few_rows_linear,
        few_rows_mxfp4=few_rows_linear.few_rows_mxfp4,
        takes_weight=few_rows_linear.takes_weight,
        takes_int8=few_rows_linear.takes_int8,
        greedy_tokens=greedy_tokens.greedy_tokens,
        lora_shrink=lora_shrink.lora_shrink,
        lora_expand=lora_expand.lora_expand,
        new_recorder=recording.Recorder,
    )


def _compiles_for_avx512_bf16() -> bool:
    """False if numba's environment variables disable it. Without these instructions LLVM would abort the process."""
    from numba import config
    from numba.core.registry import cpu_target

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return not config.DISABLE_JIT and "+avx512bf16" in features.split(",")
