"""A norm whose rows arrive in parts, because the all-reduce before it runs beside matrix products.

With tensor parallelism a norm needs the sum over the ranks, which needs the whole of a product, so the device waits for
the links. Here the rows are cut in two halves, A and B. The sums run on a stream of their own:

    compute   product A | product B | next product A | next product B
    sums                | sum A     | sum B          |

Attention and activations see all rows at once, so nothing but the products around a norm knows of the halves.
TokenWeave (Gond et al. 2025) and NanoFlow (Zhu et al. 2024) overlap in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ArrivingRows:
    """rows [N, C]: to be read behind `wait` only. source: what the sum reads, kept until then. ready: recorded behind
    the sum; None: it has been computed."""

    rows: Tensor
    source: Tensor
    ready: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The rows. What is launched from now on, on the current stream, runs behind the sum; the host goes on."""
        if self.ready is not None:
            torch.cuda.current_stream(self.rows.device).wait_event(self.ready)
        return self.rows


def arrived(x: Tensor, residual: Tensor, norm: Tensor, total: Tensor) -> ArrivingRows:
    """Of what has been computed of x and the residual: (norm, total)."""
    if total.data_ptr() != residual.data_ptr():
        residual.copy_(total)
    return ArrivingRows(norm, x, None)


@dataclass(frozen=True, slots=True)
class ArrivingNorm:
    """The output of a norm, [T, C], in parts of its rows, in their order. Whoever takes it multiplies them one by one:
    the residual stream, too, is complete only then."""

    parts: tuple[ArrivingRows, ...]

    def multiplied(self, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([multiply(part.wait()) for part in self.parts])

    def multiplied_by(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b, [T, out_features]. weight [out_features, C]."""
        out = weight.new_empty(sum(len(part.rows) for part in self.parts), len(weight))
        for place, part in zip(self._places_in(out), self.parts, strict=True):
            if bias is None:
                torch.mm(part.wait(), weight.t(), out=place)
            else:
                torch.addmm(bias, part.wait(), weight.t(), out=place)
        return out

    def _places_in(self, out: Tensor) -> Iterator[Tensor]:
        yield from out.split([len(part.rows) for part in self.parts])


_TILE = 128
"""Rows of a tile of large products: a half has whole ones."""


def half_of(num_rows: int) -> int:
    """How many rows the first half has."""
    half = num_rows // 2
    return -(-half // _TILE) * _TILE if num_rows > 2 * _TILE else half
