"""Triton's Gluon where it is installed: a language with explicit layouts, copies and waits, for kernels that Triton's
compiler does not schedule well. Like kernels/optional_triton.py. Gluon has no interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.language.nvidia.ampere import async_copy
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor

    # Names that changed after Triton 3.6.
    barrier: Any = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
    tma = hopper.tma
    copy_cells: Any = (
        async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
    )
    copy_tile: Any = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    _shared: Any = gl.shared_memory_descriptor
    reinterpret: Any = _shared.reinterpret if hasattr(_shared, "reinterpret") else _shared._reinterpret
    _HAS_GLUON = True
except ModuleNotFoundError:

    class _NoGluon:
        """The only part of Gluon that a file uses on import: the decorator."""

        @staticmethod
        def jit(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
            return function if function is not None else _NoGluon.jit

        constexpr_function = jit

    gluon, gl = _NoGluon, None
    hopper = GluonTensorDescriptor = async_copy = barrier = copy_cells = copy_tile = reinterpret = None
    _HAS_GLUON = False


def runs_gluon(x: Tensor) -> bool:
    """Whether the kernels written in Gluon run on x's device: they use instructions of sm_90."""
    return _HAS_GLUON and x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


__all__ = [
    "GluonTensorDescriptor",
    "async_copy",
    "barrier",
    "copy_cells",
    "copy_tile",
    "gl",
    "gluon",
    "hopper",
    "reinterpret",
    "runs_gluon",
]
