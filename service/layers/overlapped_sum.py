"""All-reduces that run beside matrix products: the norm after an all-reduce gets its rows in two parts.

With tensor parallelism, product, all-reduce, norm and the next product depend on each other, so the GPU's matrix units
wait for the links. Here the rows of a step are cut into two halves, A and B, and the all-reduces have their own stream:

    compute      product A | product B | next product A | next product B
    all-reduce             | sum A     | sum B          |

Attention and activations see all rows at once: only the products around a norm know of the halves. TokenWeave (Gond et
al. 2025) and NanoFlow (Zhu et al. 2024) overlap in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ArrivingRows:
    """rows [N, C]: may be read only after `wait`. source: the product that the all-reduce reads, kept alive until then.
    ready: recorded after the all-reduce; None if it has already been computed."""

    rows: Tensor
    source: Tensor
    ready: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """Make the current stream wait for the all-reduce, and return the rows. The host does not wait."""
        if self.ready is not None:
            torch.cuda.current_stream(self.rows.device).wait_event(self.ready)
        return self.rows


def arrived(x: Tensor, residual: Tensor, norm: Tensor, total: Tensor) -> ArrivingRows:
    """The result of an all-reduce that has been computed already. (norm, total): of x and the residual; the residual's
    storage gets the total."""
    if total.data_ptr() != residual.data_ptr():
        residual.copy_(total)
    return ArrivingRows(norm, x, None)


@dataclass(frozen=True, slots=True)
class ArrivingNorm:
    """The output of a norm, [T, C], as consecutive parts of its rows. The next product must multiply every part before
    anything reads the residual stream, which the same all-reduces complete."""

    parts: tuple[ArrivingRows, ...]

    def multiplied(self, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([multiply(part.wait()) for part in self.parts])

    def multiplied_by(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b, [T, out_features], written without a copy. weight [out_features, C]."""
        num_rows = [len(part.rows) for part in self.parts]
        out = weight.new_empty(sum(num_rows), len(weight))
        for place, part in zip(out.split(num_rows), self.parts, strict=True):
            if bias is None:
                torch.mm(part.wait(), weight.t(), out=place)
            else:
                torch.addmm(bias, part.wait(), weight.t(), out=place)
        return out


_TILE = 128
"""Rows of a tile of large matrix products. The first half is a multiple of it."""


def half_of(num_rows: int) -> int:
    """Rows of the first half."""
    half = num_rows // 2
    return -(-half // _TILE) * _TILE if num_rows > 2 * _TILE else half
