"""Products with a fixed order of summation beside the usual kernels, us on a GPU, with what is fused with them; and
whether all variants give the same bits:

    python -m loadtest.bench.ordered_products [--rows 1 64 256 2048 8192] [--tiles all]

Each is one linear of Llama-8B, and for few rows its head: qkv after a norm, output and down added to the residual with
the next norm fused, gate and up with SiLU. `usual`: cuBLAS and the kernels around it. `usual, fused`: the kernels for
few rows. `unsplit`: kernels/unsplit_linear.py. Then tiles of kernels/ordered_linear.py: `--tiles all` times all of
them; `wide` the table's and those with 2^15 sums per program; `chosen` only the table's. A variant whose rows have
other bits than computed alone, or than with the table's tiles, is marked with `!`. Measured by replays of CUDA graphs
over weights larger than the L2 cache. Takes about 60 s for five numbers of rows; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.norm_linear import norm_linear
from kernels.ordered_linear import ordered_add_norm_triton, ordered_linear_triton
from kernels.ordered_tiles import TileConfig, num_parts, tile_config
from kernels.replay_timing import seconds_by_replay
from kernels.rms_norm import add_rms_norm
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_config import MAX_ROWS
from kernels.skinny_linear import new_arrivals, skinny_linear
from kernels.unsplit_linear import unsplit_add_norm_triton, unsplit_linear_triton

SHAPES = {
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
_ROTATED_BYTES = 192 << 20
_MOST_WEIGHTS = 8
_MOST_HEAD_ROWS = 1152
_MOST_FEATURES = 128256
_LEAST_LAUNCHES = 8
"""Launches per CUDA graph at the least: with one, the graph's own launch would be a large part of the time."""
_ROUNDS = 3
_EPS = 1e-5


class Operands(NamedTuple):
    """x [M, K], and its divisor if a norm comes before; residual [M, N] and norm_weight [N] if a norm comes after.
    consumed: a residual that may be overwritten. arrivals: the counters of kernels/skinny_linear.py."""

    x: Tensor
    deferred: DeferredNorm
    residual: Tensor
    consumed: Tensor
    norm_weight: Tensor
    arrivals: Tensor

    def first(self, rows: int) -> Operands:
        deferred = self.deferred._replace(
            weighted=self.deferred.weighted[:rows], squares=self.deferred.squares[:, :rows].contiguous()
        )
        return self._replace(x=self.x[:rows], deferred=deferred, residual=self.residual[:rows])


Way = Callable[[Operands, Tensor], Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="time products with a fixed order of summation")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 2048, 8192])
    parser.add_argument("--tiles", choices=("all", "wide", "chosen"), default="all", help="tiles to time; default: all")
    options = parser.parse_args(arguments)
    all_results = (_of_shape(shape, options.rows, options.tiles) for shape in SHAPES)
    print(json.dumps([result for results in all_results for result in results]))


def _of_shape(shape: str, all_rows: Sequence[int], tiles: str) -> Iterator[dict[str, object]]:
    num_features, size = SHAPES[shape]
    first = (torch.randn(num_features, size, device="cuda") * size**-0.5).bfloat16()
    count = max(1, min(_MOST_WEIGHTS, -(-_ROTATED_BYTES // first.nbytes)))
    weights = [first, *(first.clone() for _ in range(count - 1))]
    for rows in all_rows:
        if shape == "head" and rows > _MOST_HEAD_ROWS:
            continue
        operands = _operands(rows, num_features, size)
        ways = _usual(shape, rows) | _ordered(shape, rows, num_features, size, tiles)
        compile_ahead(partial(_launch_all, list(ways.values()), operands, first))
        alone = _by_tiles(operands.first(1), first, shape=shape, config=None)
        chosen: Tensor | None = None
        print(f"{shape}, {rows} rows")
        for name, way in ways.items():
            try:
                out = way(operands, first)
            except Exception as fault:  # Triton's own exception if a tile needs too much shared memory
                print(f"    {name}: {type(fault).__name__}")
                continue
            chosen = out if name.startswith("chosen") else chosen
            same = None if name.startswith("usual") else _are_alone(out, alone, chosen)
            launches = [partial(way, operands, weight) for weight in weights * -(-_LEAST_LAUNCHES // count)]
            us = seconds_by_replay(launches, _ROUNDS) * 1e6
            print(f"    {us:9.1f} us  {name}{'' if same is not False else ' !'}", flush=True)
            yield {"shape": shape, "rows": rows, "way": name, "us": round(us, 2), "same": same}


def _are_alone(out: Tensor, alone: Tensor, chosen: Tensor | None) -> bool:
    """Whether the first row has the bits that it has alone, and all rows those of the table's tiles."""
    return torch.equal(out[:1], alone) and (chosen is None or torch.equal(out, chosen))


def _operands(rows: int, num_features: int, size: int) -> Operands:
    device = torch.device("cuda")
    x = torch.randn(rows, size, device=device).bfloat16()
    squares = x.float().square().unflatten(1, (-1, 64)).sum(-1).T.contiguous()
    residual = torch.randn(rows, num_features, device=device).bfloat16()
    norm_weight = torch.rand(num_features, device=device).bfloat16()
    arrivals = new_arrivals(_MOST_FEATURES, device)
    return Operands(x, DeferredNorm(x, squares, _EPS), residual, residual.clone(), norm_weight, arrivals)


def _launch_all(ways: Sequence[Way], operands: Operands, weight: Tensor) -> None:
    for way in ways:
        way(operands, weight)


def _usual(shape: str, rows: int) -> dict[str, Way]:
    ways: dict[str, Way] = {"usual": partial(_by_cublas, shape=shape)}
    if rows <= MAX_ROWS:
        ways["usual, fused"] = partial(_by_strips, shape=shape)
    return ways


def _ordered(shape: str, rows: int, num_features: int, size: int, tiles: str) -> dict[str, Way]:
    """Variants by name; the table's tile is first."""
    chosen = None if rows <= MAX_ROWS else tile_config(rows, num_features, size, gated=shape == "gate_up")
    ways: dict[str, Way] = {f"chosen: {_name(chosen)}": partial(_by_tiles, shape=shape, config=chosen)}
    if rows > MAX_ROWS:
        ways["unsplit"] = partial(_unsplit, shape=shape)
    has_parts = num_parts(num_features, size) > 1
    wide = () if has_parts else _wide_tiles(rows)
    for config in (*wide, *(_tiles(rows, has_parts) if tiles == "all" else ())):
        if config != chosen and tiles != "chosen":
            ways[_name(config)] = partial(_by_tiles, shape=shape, config=config)
    return ways


def _name(config: TileConfig | None) -> str:
    if config is None:
        return "few"
    tile = f"{config.block_m} x {config.block_n} x {config.block_k}"
    return f"{tile}, {config.num_warps} warps, {config.num_stages} stages{', by parts' if config.by_parts else ''}"


def _wide_tiles(rows: int) -> Iterator[TileConfig]:
    """Tiles with 2^15 sums. Not for K summed in parts: there they would spill registers."""
    if rows > MAX_ROWS:
        yield TileConfig(128, 256, 64, num_warps=8, num_stages=4)
    if rows >= 256:
        yield TileConfig(256, 128, 64, num_warps=8, num_stages=4)


def _tiles(rows: int, has_parts: bool) -> Iterator[TileConfig]:
    if rows <= MAX_ROWS:
        yield TileConfig(64, 64, 128, num_warps=4, num_stages=4)
        return
    yield TileConfig(128, 128, 64, num_warps=8, num_stages=6)
    yield TileConfig(128, 128, 128, num_warps=8, num_stages=3)
    if has_parts:
        yield TileConfig(128, 128, 64, num_warps=8, num_stages=6, by_parts=True)
        yield TileConfig(128, 128, 128, num_warps=8, num_stages=3, by_parts=True)
        yield TileConfig(128, 128, 64, num_warps=4, num_stages=3, by_parts=True)
    else:
        yield TileConfig(128, 128, 64, num_warps=4, num_stages=3)
        yield TileConfig(256, 64, 64, num_warps=8, num_stages=5)
    if rows <= 384:
        yield TileConfig(64, 128, 64, num_warps=4, num_stages=3, by_parts=has_parts)
        yield TileConfig(64, 128, 64, num_warps=4, num_stages=6, by_parts=has_parts)


def _by_cublas(operands: Operands, weight: Tensor, shape: str) -> Tensor:
    product = F.linear(operands.x, weight)
    if shape in ("output", "down"):
        return add_rms_norm(product, operands.consumed, operands.norm_weight, _EPS)[0]
    return silu_and_mul(product) if shape == "gate_up" else product


def _by_strips(operands: Operands, weight: Tensor, shape: str) -> Tensor:
    x, deferred, residual, _, norm_weight, arrivals = operands
    if shape in ("output", "down"):
        return linear_add_norm(x, weight, None, residual, norm_weight, _EPS, arrivals)[1]
    if shape == "head":
        return skinny_linear(x, weight, None, arrivals)
    return norm_linear(deferred, weight, None, arrivals, shape == "gate_up")


def _by_tiles(operands: Operands, weight: Tensor, shape: str, config: TileConfig | None) -> Tensor:
    x, deferred, residual, _, norm_weight, arrivals = operands
    if shape in ("output", "down"):
        into = x, weight, None, residual, norm_weight, _EPS, arrivals
        return ordered_add_norm_triton(*into, config)[0].weighted
    if shape == "head":
        return ordered_linear_triton(x, weight, None, arrivals, config)
    return ordered_linear_triton(deferred, weight, None, arrivals, config, gated=shape == "gate_up")


def _unsplit(operands: Operands, weight: Tensor, shape: str) -> Tensor:
    x, deferred, residual, _, norm_weight, _ = operands
    if shape in ("output", "down"):
        into = x, weight, None, residual, norm_weight, _EPS
        return unsplit_add_norm_triton(*into, num_parts(*weight.shape))[0].weighted
    return unsplit_linear_triton(x if shape == "head" else deferred, weight, gated=shape == "gate_up")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
