"""How kernels/ordered_linear.py cuts a product: K into parts, rows and features into tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MOST_ROWS_BY_PARTS = 256
"""`arrivals` (kernels/ordered_linear.py) has a place for each tile of 64 x 128 then, but for odd features."""
_MULTIPROCESSORS = 132
"""Of the GPU that tiles were measured on."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A program's tile: block_m rows by block_n features. by_parts: it computes one part of K, and the last to come
    adds; else one after the other, or two parts `at_once` where they are of one length. weight_left: of the matrix
    unit, 64 features for each warp group of 4 warps instead of 64 rows."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    by_parts: bool = False
    at_once: bool = False
    weight_left: bool = False


def num_parts(num_features: int, size: int) -> int:
    """Of K. So many that few rows, which have a program for each part of 64 features, keep a GPU's multiprocessors
    busy."""
    if size < 2048:
        return 1
    if num_features <= 2048:
        return 4
    return 2 if num_features <= 4608 else 1


def tile_config(num_rows: int, num_features: int, size: int) -> TileConfig:
    """Best of 14 on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us with what is fused, beside cuBLAS's and
    the kernels around it:

    rows        256             512             2048 (the product alone)
    qkv         28.6 (22.0)     45.6 (36.1)     140 (131)
    output      23.5 (23.1)     30.3 (29.6)     108 (87)
    gate_up     103 (102)       179 (168)       638 (601)
    down        52.6 (52.3)     83.7 (83.4)     333 (291)

    Two programs of 4 warps on a multiprocessor overlap one's end with the other's products, and take 1.84 times as long
    as one of 8 warps that has it for itself: that one is better where it leaves fewer multiprocessors idle at the end.
    Where K is in parts, 128 x 128 sums twice take 8 warps. Tiles of 256 rows or features take 10 to 30 % more, but of
    few features.
    """
    num_tiles = -(-num_rows // 128) * -(-num_features // 128)
    one_for_itself = TileConfig(128, 128, 64, num_warps=8, num_stages=6)
    if num_parts(num_features, size) > 1:
        if num_tiles < 64:
            return TileConfig(64, 128, 64, num_warps=4, num_stages=6, by_parts=True)
        return replace(one_for_itself, by_parts=num_rows <= _MOST_ROWS_BY_PARTS)
    if num_tiles < _MULTIPROCESSORS:
        if num_rows > 128:
            return TileConfig(256, 64, 64, num_warps=8, num_stages=5)
        return TileConfig(64, 128, 64, num_warps=4, num_stages=4)
    turns, turns_of_two = -(-num_tiles // _MULTIPROCESSORS), -(-num_tiles // (2 * _MULTIPROCESSORS))
    return one_for_itself if turns < 1.84 * turns_of_two else TileConfig(128, 128, 64, num_warps=4, num_stages=3)
