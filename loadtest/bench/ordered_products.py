"""How long products in one order of summation take on a GPU beside cuBLAS, us, and whether all have the same bits:

    python -m loadtest.bench.ordered_products [--rows 1 64 256 2048 8192]

Each is one linear of Llama-8B's shapes, and its head for few rows. Every tile of kernels/ordered_linear.py, by K in as
many parts as the weight's shape says, and whole; `few` is the way of up to 64 rows. A row that has other bits than
alone is marked by `!`. By replays of CUDA graphs over weights of more bytes than the L2 cache holds. Some 60 s; the
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.ordered_linear import TileConfig, num_parts, ordered_linear_triton, tile_config
from kernels.replay_timing import seconds_by_replay
from kernels.skinny_linear import MAX_ROWS, new_arrivals, skinny_linear

SHAPES = {
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
_ROTATED_BYTES = 192 << 20
_MOST_WEIGHTS = 8
_MOST_HEAD_ROWS = 256
_ROUNDS = 3

Way = tuple[str, Callable[[Tensor, Tensor], Tensor], int | None]
"""Name, product, and parts of K; None: not in our order."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="time products in one order of summation")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 2048, 8192])
    options = parser.parse_args(arguments)
    print(json.dumps([result for shape in SHAPES for result in _of_shape(shape, options.rows)]))


def _of_shape(shape: str, all_rows: Sequence[int]) -> Iterator[dict[str, object]]:
    num_features, size = SHAPES[shape]
    arrivals = new_arrivals(num_features, torch.device("cuda"))
    first = (torch.randn(num_features, size, device="cuda") * size**-0.5).bfloat16()
    count = max(1, min(_MOST_WEIGHTS, -(-_ROTATED_BYTES // first.nbytes)))
    weights = [first, *(first.clone() for _ in range(count - 1))]
    alone: dict[int, Tensor] = {}
    for rows in all_rows:
        if shape == "head" and rows > _MOST_HEAD_ROWS:
            continue
        x = torch.randn(rows, size, device="cuda").bfloat16()
        ways = list(_ways(rows, num_features, size, arrivals))
        compile_ahead(partial(_launch_all, ways, x, first))
        print(f"{shape}, {rows} rows")
        for name, product, parts in ways:
            try:
                out = product(x, first)
            except Exception as fault:  # a tile that takes too much shared memory, by Triton's own exception
                print(f"    {name}: {type(fault).__name__}")
                continue
            same = None
            if parts is not None:
                alone[parts] = ordered_linear_triton(x[:1], first, None, arrivals, parts=parts)
                same = torch.equal(out[:1], alone[parts])
            us = seconds_by_replay([partial(product, x, weight) for weight in weights], _ROUNDS) * 1e6
            print(f"    {us:9.1f} us  {name}{'' if same is not False else ' !'}", flush=True)
            yield {"shape": shape, "rows": rows, "way": name, "us": round(us, 2), "same": same}


def _launch_all(ways: Sequence[Way], x: Tensor, weight: Tensor) -> None:
    for _, product, _ in ways:
        product(x, weight)


def _ways(rows: int, num_features: int, size: int, arrivals: Tensor) -> Iterator[Way]:
    yield "cuBLAS", _plainly, None
    if rows <= MAX_ROWS:
        yield "skinny", partial(_skinny, arrivals=arrivals), None
    for parts in sorted({1, num_parts(num_features, size)}):
        if rows <= MAX_ROWS:
            yield f"few, K in {parts}", partial(_ordered, arrivals=arrivals, config=None, parts=parts), parts
        for config in dict.fromkeys((tile_config(rows, num_features, size), *_tiles(rows))):
            tile = f"{config.block_m} x {config.block_n} x {config.block_k}"
            how = f"{parts} programs" if config.by_parts else f"{parts}"
            name = f"{tile}, {config.num_warps} warps, {config.num_stages} stages, K in {how}"
            yield name, partial(_ordered, arrivals=arrivals, config=config, parts=parts), parts


def _tiles(rows: int) -> Iterator[TileConfig]:
    if rows <= MAX_ROWS:
        yield TileConfig(64, 32, 128, num_warps=4, num_stages=6)
        yield TileConfig(64, 32, 256, num_warps=4, num_stages=4)
        yield TileConfig(64, 64, 128, num_warps=4, num_stages=4)
    elif rows <= 512:
        yield TileConfig(64, 64, 128, num_warps=4, num_stages=4)
        yield TileConfig(64, 128, 64, num_warps=4, num_stages=4)
        yield TileConfig(64, 256, 64, num_warps=4, num_stages=4)
        yield TileConfig(64, 128, 64, num_warps=4, num_stages=3, by_parts=True)
        yield TileConfig(128, 64, 64, num_warps=4, num_stages=3, by_parts=True)
        yield TileConfig(128, 128, 64, num_warps=4, num_stages=3, by_parts=True)
        yield TileConfig(128, 128, 64, num_warps=8, num_stages=4, by_parts=True)
        yield TileConfig(128, 64, 64, num_warps=4, num_stages=4)
        yield TileConfig(128, 128, 64, num_warps=4, num_stages=3)
        yield TileConfig(128, 128, 64, num_warps=8, num_stages=4)
        yield TileConfig(256, 64, 64, num_warps=8, num_stages=4)
        yield TileConfig(256, 128, 64, num_warps=8, num_stages=3)
    else:
        yield TileConfig(128, 128, 64, num_warps=4, num_stages=3)
        yield TileConfig(128, 128, 64, num_warps=8, num_stages=4)
        yield TileConfig(128, 128, 128, num_warps=8, num_stages=3)
        yield TileConfig(128, 256, 64, num_warps=8, num_stages=3)
        yield TileConfig(128, 256, 64, num_warps=8, num_stages=4)
        yield TileConfig(256, 128, 64, num_warps=8, num_stages=4)


def _plainly(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def _skinny(x: Tensor, weight: Tensor, arrivals: Tensor) -> Tensor:
    return skinny_linear(x, weight, None, arrivals)


def _ordered(x: Tensor, weight: Tensor, arrivals: Tensor, config: TileConfig | None, parts: int) -> Tensor:
    return ordered_linear_triton(x, weight, None, arrivals, config, parts)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
