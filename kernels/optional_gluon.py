"""Triton's Gluon where it is installed: its language in which layouts, copies and waits are written down, for kernels
that the compiler does not arrange well by itself. As kernels/optional_triton.py; there is no interpreter of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.language.nvidia.ampere import async_copy
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor

    # Names that Triton has changed since 3.6.
    barrier: Any = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
    tma = hopper.tma
    copy_cells: Any = (
        async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
    )
    copy_tile: Any = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    _shared: Any = gl.shared_memory_descriptor
    reinterpret: Any = _shared.reinterpret if hasattr(_shared, "reinterpret") else _shared._reinterpret
    HAS_GLUON = True
except ModuleNotFoundError:

    class _NoGluon:
        """What a file uses of Gluon while it is imported: the decorator."""

        @staticmethod
        def jit(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
            return function if function is not None else _NoGluon.jit

        constexpr_function = jit

    gluon, gl = _NoGluon, None
    hopper = GluonTensorDescriptor = async_copy = barrier = copy_cells = copy_tile = reinterpret = None
    HAS_GLUON = False

__all__ = [
    "HAS_GLUON",
    "GluonTensorDescriptor",
    "async_copy",
    "barrier",
    "copy_cells",
    "copy_tile",
    "gl",
    "gluon",
    "hopper",
    "reinterpret",
]
