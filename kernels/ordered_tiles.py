"""How kernels/ordered_linear.py divides a product: K into parts, rows and features into tiles; and which products
cuBLAS computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

PART_BORDER = 128
"""Parts of K begin at multiples of this."""
STRIP = 64
"""Features whose squares are summed first, as two sums of 32 (kernels/pairwise_sum.py): programs of few rows may have
no more features."""
_MOST_ROWS_BY_PARTS = 1280
"""Limits the memory for parts: 4 bytes for each row, feature and part."""
_LONG_SUM = 8192
"""From this many inputs on, storing and merging parts takes little of the time."""
_MULTIPROCESSORS = 132
"""Multiprocessors of the GPU that tiles were measured on."""
_LEAST_UNSPLIT_ELEMENTS = 1 << 23
"""Elements of a weight. With fewer, a product takes hardly longer than the extra launch after cuBLAS."""
_UNSPLIT_BORDER = 64
"""Features and inputs must be multiples of this: which kernels cuBLAS uses for others, and in which order they sum, has
not been examined."""
_FILLED, _FILLED_BY_LARGE = 0.85, 0.95
"""If tiles fill at least this share of the multiprocessors' waves, they are faster than cuBLAS plus a launch: tiles of
128 and of 256 rows, by 128 features."""


class Fused(Enum):
    """What is fused with a product: nothing; a norm's division; the division with SiLU and the product of gate and up;
    or the residual add and the norm without its division."""

    NOTHING = auto()
    DIVISION = auto()
    GATE = auto()
    ADD_NORM = auto()


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A program's tile: block_m rows by block_n features. by_parts: a program computes one part of K, and the last one
    to finish adds them; otherwise a program computes all parts in turn."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    by_parts: bool = False


def num_parts(num_features: int, size: int) -> int:
    """Parts of K: enough that with few rows, where each part of a strip has a program, all multiprocessors are busy."""
    return 4 if size >= 2048 and num_features <= 2048 else 1


def tile_config(num_rows: int, num_features: int, size: int, *, gated: bool = False) -> TileConfig:
    """The best of 16 configs on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us with what is fused; in
    brackets cuBLAS with separate kernels. Many of these are `is_unsplit`.

    rows        256             512             768             1,024           4,096
    qkv         27.9 (21.8)     44.2 (35.3)     76.6 (51.0)     87.1 (68.0)     293 (258)
    output      23.2 (20.3)     30.1 (29.6)     54.1 (41.8)     60.4 (53.8)     237 (203)
    gate_up     99.6 (95.6)     177 (164)       270 (264)       333 (325)       1,304 (1,318)
    down        53.8 (54.3)     83.3 (81.6)     142 (125)       164 (155)       690 (614)

    What counts is how many waves the multiprocessors take. With 4,096 inputs a wave takes, in us: two programs of 128 x
    128 in 4 warps per multiprocessor, one's end overlapping the other's products, 44. One program per multiprocessor:
    64 x 128 18; 128 x 128 in 8 warps 34, gated 25, with 128 inputs per stage 27; 256 x 64 28, if there are so many
    rows; gated 256 x 128 46.5. If K is in parts, two sets of 128 x 128 sums need 8 warps; by_parts makes waves half as
    long, with ends of the same length. A tile with more rows than exist takes up to twice as long.
    """
    parts, num_tiles = num_parts(num_features, size), _num_tiles(num_rows, 128, num_features, 128)
    if gated and parts == 1 and _fills_large(num_rows, num_features):
        return TileConfig(256, 128, 64, num_warps=8, num_stages=4)
    low = TileConfig(64, 128, 64, num_warps=4, num_stages=6)
    wide = TileConfig(128, 128, 64, num_warps=8, num_stages=6)
    if parts > 1:
        if num_tiles < 64:
            return replace(low, by_parts=True)
        is_shorter = _turns(parts * num_tiles) < parts * _turns(num_tiles)
        pays = parts * num_tiles <= _MULTIPROCESSORS or size >= _LONG_SUM
        return replace(wide, by_parts=is_shorter and pays and num_rows <= _MOST_ROWS_BY_PARTS)
    if num_rows < wide.block_m:
        return low
    if num_tiles < _MULTIPROCESSORS and num_rows > wide.block_m:
        is_high = num_rows % 256 == 0
        return TileConfig(256, 64, 64, 8, 5) if is_high else TileConfig(128, 128, 128, num_warps=8, num_stages=3)
    if not gated and _num_tiles(num_rows, low.block_m, num_features, low.block_n) <= 2 * _MULTIPROCESSORS:
        return low
    turns_of_two = -(-num_tiles // (2 * _MULTIPROCESSORS))
    if gated and _turns(num_tiles) < 1.84 * turns_of_two:
        return wide
    return TileConfig(128, 128, 64, num_warps=4, num_stages=3)


def is_unsplit(num_rows: int, num_features: int, size: int, *, fused: Fused) -> bool:
    """Whether cuBLAS multiplies so many rows (more than few), followed by a launch for what is fused
    (kernels/unsplit_linear.py).

    On one H200 (torch 2.11, triton 3.6), us at Llama-8B's shapes with cuBLAS and that launch, and with tiles:

    rows        256        640        768         1,152       2,048       4,096
    qkv         26, 30     54, 48     59, 80      94, 94      147, 142    288, 283
    output      21, 24     44, 54     51, 54      74, 83      130, 118    248, 234
    gate_up     99, 97     217, 222   257, 269    359, 393    648, 653    1,395, 1,304
    down        53, 57     112, 150   129, 138    187, 225    334, 329    671, 676
    head        363, 416   914, 954   1146, 1144  1734, 1887

    So cuBLAS is used except where tiles fill the multiprocessors' last wave: there the extra launch costs more.
    """
    if not may_be_unsplit(num_features, size):
        return False
    if fused is Fused.NOTHING:
        return True
    if fused is Fused.GATE:
        return num_rows > 128 and not _fills_large(num_rows, num_features)
    if fused is Fused.ADD_NORM and num_parts(num_features, size) == 1:
        return True
    return _share_filled(num_rows, 128, num_features, 2 if fused is Fused.DIVISION else 1) < _FILLED


def may_be_unsplit(num_features: int, size: int) -> bool:
    """Whether `is_unsplit` may be true for any number of rows."""
    is_whole = num_features % _UNSPLIT_BORDER == 0 and size % _UNSPLIT_BORDER == 0
    return is_whole and num_features * size >= _LEAST_UNSPLIT_ELEMENTS


def _fills_large(num_rows: int, num_features: int) -> bool:
    return num_rows >= 256 and _share_filled(num_rows, 256, num_features, 1) >= _FILLED_BY_LARGE


def _share_filled(num_rows: int, block_m: int, num_features: int, programs: int) -> float:
    """The share of the multiprocessors' waves that tiles of 128 features fill, with `programs`
    on each multiprocessor."""
    num_tiles, at_once = _num_tiles(num_rows, block_m, num_features, 128), programs * _MULTIPROCESSORS
    return num_rows * num_features / (-(-num_tiles // at_once) * at_once * block_m * 128)


def _num_tiles(num_rows: int, block_m: int, num_features: int, block_n: int) -> int:
    return -(-num_rows // block_m) * -(-num_features // block_n)


def _turns(num_programs: int) -> int:
    """Waves of programs that each have a multiprocessor to themselves."""
    return -(-num_programs // _MULTIPROCESSORS)
