"""How kernels/ordered_linear.py cuts a product: K into parts, rows and features into tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MOST_ROWS_BY_PARTS = 1024
"""What programs leave for each other is 4 bytes for each row, feature and part."""
_MULTIPROCESSORS = 132
"""Of the GPU that tiles were measured on."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A program's tile: block_m rows by block_n features. by_parts: it computes one part of K, and the last to come
    adds; else one after the other."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    by_parts: bool = False


def num_parts(num_features: int, size: int) -> int:
    """Of K. So many that few rows, which have a program for each part of 64 features, keep a GPU's multiprocessors
    busy."""
    if size < 2048:
        return 1
    if num_features <= 2048:
        return 4
    return 2 if num_features <= 4608 else 1


def tile_config(num_rows: int, num_features: int, size: int, *, gated: bool = False) -> TileConfig:
    """Best of 14 on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us with what is fused, beside cuBLAS's and
    the kernels around it:

    rows        256             512             1,024           4,096
    qkv         27.9 (21.8)     44.2 (35.3)     84.0 (68.0)     293 (258)
    output      23.2 (20.3)     30.1 (29.6)     59.3 (53.8)     237 (203)
    gate_up     99.6 (95.6)     177 (164)       333 (325)       1,454 (1,344)
    down        53.8 (54.3)     83.3 (81.6)     164 (155)       690 (614)

    What counts is how many turns the multiprocessors take: of 768 rows some tiles would leave nearly all of them idle
    in the last turn. Two programs of 4 warps on a multiprocessor overlap one's end with the other's products. One of 8
    warps that has it for itself takes 1 / 1.84 of the time (gated, 128 x 128) or 1 / 1.57 (256 x 64). Where K is in
    parts, 128 x 128 sums twice take 8 warps; by parts its turns are of half the length.
    """
    parts, num_tiles = num_parts(num_features, size), _num_tiles(num_rows, 128, num_features, 128)
    one_for_itself = TileConfig(128, 128, 64, num_warps=8, num_stages=6)
    if parts > 1:
        if num_tiles < 64:
            return TileConfig(64, 128, 64, num_warps=4, num_stages=6, by_parts=True)
        is_shorter = _turns(parts * num_tiles) < parts * _turns(num_tiles)
        return replace(one_for_itself, by_parts=is_shorter and num_rows <= _MOST_ROWS_BY_PARTS)
    high = TileConfig(256, 64, 64, num_warps=8, num_stages=5)
    if num_tiles < _MULTIPROCESSORS:
        return high if num_rows > 128 else TileConfig(64, 128, 64, num_warps=4, num_stages=4)
    turns_of_two = -(-num_tiles // (2 * _MULTIPROCESSORS))
    if gated and _turns(num_tiles) < 1.84 * turns_of_two:
        return one_for_itself
    if not gated and _turns(_num_tiles(num_rows, high.block_m, num_features, high.block_n)) < 1.57 * turns_of_two:
        return high
    return TileConfig(128, 128, 64, num_warps=4, num_stages=3)


def _num_tiles(num_rows: int, block_m: int, num_features: int, block_n: int) -> int:
    return -(-num_rows // block_m) * -(-num_features // block_n)


def _turns(num_programs: int) -> int:
    """Of programs that have a multiprocessor for themselves."""
    return -(-num_programs // _MULTIPROCESSORS)
