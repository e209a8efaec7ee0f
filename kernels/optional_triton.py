"""Triton where it is installed. Elsewhere (macOS, Windows) the kernels' files can still be imported, and only the
references run.

A file with a kernel says `from kernels.optional_triton import tl, triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
    from triton.tools.tensor_descriptor import TensorDescriptor
except ModuleNotFoundError:

    class _NoTriton:
        """The only part of Triton that a file uses on import: the decorator."""

        @staticmethod
        def jit(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
            return function if function is not None else _NoTriton.jit

    triton, tl = _NoTriton, None
    gdc_launch_dependents = gdc_wait = TensorDescriptor = None

__all__ = ["TensorDescriptor", "gdc_launch_dependents", "gdc_wait", "tl", "triton"]
