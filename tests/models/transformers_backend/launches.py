"""Counts what a step would launch on a GPU, on a CPU: each call of one of our kernels, and each operation of torch
outside of them that computes or copies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from service.layers.linear_method import KernelRows, RowRange
from service.models.implementation import WantedImplementation
from tests.models.forward import logits_of, ready_model

FUSED = KernelRows(64, add_norm=RowRange(1, 16), gated=RowRange(1, 16))
_NO_LAUNCH = {"empty", "empty_strided", "new_empty", "detach", "_unsafe_view", "_reshape_alias", "lift_fresh"}


class Launches(TorchDispatchMode):
    """names: of the launches so far below a function: a function of `kernels`, or an operation of torch."""

    def __init__(self, below: CodeType) -> None:
        super().__init__()
        self._below = below
        self.names: list[str] = []
        self._calls: list[FrameType] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        frames = list(_frames())
        is_below = any(frame.f_code is self._below for frame in frames)
        if is_below and not _is_view(func) and name not in _NO_LAUNCH:
            call = next((frame for frame in reversed(frames) if _is_kernel(frame)), None)
            if call is None:
                self.names.append(name)
            elif not any(call is each for each in self._calls):
                self._calls.append(call)
                self.names.append(call.f_code.co_name)
        return made


def launches_of_step(folder: Path, implementation: WantedImplementation, choice: KernelRows = FUSED) -> list[str]:
    """Of a step of four tokens, without the head."""
    config, model = ready_model(folder, choice, implementation)
    with Launches(type(model).forward.__code__) as launches:
        logits_of(model, config, [5, 6, 7, 8])
    return launches.names


def launches_of_layer(folder: Path, deeper: Path, implementation: WantedImplementation) -> list[str]:
    """Sorted names of what one layer launches: `deeper` has one layer more."""
    more = launches_of_step(deeper, implementation)
    for name in launches_of_step(folder, implementation):
        more.remove(name)
    return sorted(more)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_kernel(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("kernels.")


def _is_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
