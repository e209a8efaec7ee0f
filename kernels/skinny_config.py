"""Tile configs for products of few rows: kernels/skinny_linear.py, linear_add_norm.py and norm_linear.py.

A config depends on the weight and on the range of the number of rows: up to FEW_ROWS, up to MAX_ROWS, or more. So
within each range a row's bits are the same. For quantized weights, up to 8 rows in bf16 are a range of their own: they
are multiplied in registers (kernels/register_product.py, which says what it takes).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.quantized_weight import QuantizedWeight

FEW_ROWS, MAX_ROWS = 16, 64
MAX_QUANTIZED_ROWS = 256
_QUANTIZED_BLOCK_K = 128


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """block_n: output features per program, 16 for each warp. block_k: input features per stage (half of it in fp32).
    num_splits: of K. warp_tiles: how many tiles of 16 output features a warp has in registers, while k_warps of the
    warps divide a split's part of K among them (kernels/register_product.py); 0: the product goes through shared
    memory. starts_late: the next kernel's programs may start only when this one's products are done
    (kernels/dependent_launch.py)."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    num_splits: int = 1
    warp_tiles: int = 0
    k_warps: int = 1
    starts_late: bool = False


def skinny_config(num_rows: int, num_features: int, size: int) -> SkinnyConfig:
    """The best of 23 configs on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, TB/s of weights for 1 and 16
    rows, in brackets cuBLAS's: qkv 3.40, 3.30 (3.03, 3.14); output 2.85, 2.82 (2.67, 2.66); gate_up 4.16, 4.06 (4.10,
    3.79); down 3.85, 3.79 (3.77, 3.66); head 4.44, 4.34 (4.26, 4.17).

    For 64 rows the best of 11, us, in brackets cuBLAS's: qkv 17.0 (16.2), output 11.8 (11.9), gate_up 62.0 (62.9), down
    33.1 (36.3), head 263 (283). Strips of 128 take 66 for gate_up; strips of 32 take 26, 26 and 83 for qkv, output and
    down; more splits cost 3 to 8 us each time.

    With 1024 features (Qwen3-0.6B's output and down) there are too few strips. us for 1 row: K in 4 parts 4.2 and 4.9,
    whole 5.3 and 6.9, in 8 parts 6.2 and 7.4. For 64 rows: in 4 parts 6.0 and 6.8, in 2 parts 6.7 and 8.0, in 8 parts
    7.2 and 7.7. Parts of a K of 1024 are too short: its qkv takes 5.6 us whole, 6.1 in 2 parts (64 rows).
    """
    if num_rows > FEW_ROWS:
        if num_features <= 2048:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=4, num_splits=4)
        if num_features <= 4608:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=4, num_splits=2 if size > 2048 else 1)
        if num_features <= 12288:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=4)
        if num_features <= 65536:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=3)
        return SkinnyConfig(128, 64, num_warps=4, num_stages=4)
    if num_features <= 2048:
        return SkinnyConfig(32, 256, num_warps=2, num_stages=6, num_splits=4)
    if num_features <= 4608 and size > 2048:
        return SkinnyConfig(32, 256, num_warps=2, num_stages=6)
    if num_features <= 12288:
        return SkinnyConfig(64, 256, num_warps=4, num_stages=4)
    if num_features <= 65536:
        return SkinnyConfig(64, 128, num_warps=4, num_stages=4)
    return SkinnyConfig(128, 128, num_warps=4, num_stages=3)


def quantized_config(num_rows: int, weight: QuantizedWeight) -> SkinnyConfig:
    """The best of 25 to 38 configs on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us of fp8 and of int4. 16
    rows: qkv 12.9, 11.5, output 9.4, 10.6, gate_up 39.5, 34.1, down 23.5, 24.0. 64 rows: 19.6, 21.0, 14.9, 17.0, 72.5,
    60.4, 39.7, 44.0. 256 rows: 49.0, 43.5, 28.4, 35.5, 167, 169, 92.9, 149.

    Bytes must be widened as fast as memory delivers them, by all four schedulers of a multiprocessor. So several
    programs share a multiprocessor: small ones with few stages, and K in 4 parts if there are few strips. With 8 stages
    of 256 features one program of two warps filled its shared memory, and qkv, output, gate_up and down took 16.9,
    16.0, 44.2 and 47.0 (fp8, 16 rows). Strips of 64 and 128 features take more at 16 rows. A stage has at most one
    group's input features. loadtest/bench/products.py times others.
    """
    num_features, size = weight.shape
    block_k = weight.chunk if weight.is_int4 else _QUANTIZED_BLOCK_K
    if weight.scales.shape[1] > 1:
        block_k = min(block_k, weight.group_size)
    is_narrow, is_wide = num_features <= 4608, num_features > 12288
    if num_rows > MAX_ROWS:
        return SkinnyConfig(64, block_k, num_warps=4, num_stages=4 if is_narrow else 3)
    num_splits = 4 if size > 2048 or num_features <= 2048 else 1
    if num_rows > FEW_ROWS:
        if is_wide and weight.is_int4:
            return SkinnyConfig(128, block_k, num_warps=4, num_stages=3)
        return SkinnyConfig(64, block_k, 4, 4 if is_narrow else 3, 2 if is_wide and size > 2048 else num_splits)
    if is_wide:
        return SkinnyConfig(32, block_k, 2, 4, 2 if weight.is_int4 and size > 2048 else 1)
    return SkinnyConfig(32, block_k, 2, 4 if weight.is_int4 or not is_narrow else 8, num_splits)


def register_config(weight: QuantizedWeight) -> SkinnyConfig:
    """The best of 27 to 170 configs on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us for 1 row, in
    brackets through shared memory. int4, groups of 128: qkv 7.6 (11.0), output 6.5 (9.9), gate_up 23.4 (33.3), down
    13.5 (21.9). fp8: 10.4 (12.8), 8.0 (8.9), 34.7 (40.6), 20.0 (22.4).

    Two warps that take a row's chunks in turn read 128 bytes of it together; with one warp gate_up takes 28 (int4) and
    38 (fp8). If int4's words are loaded only when they are needed, qkv, gate_up and down take 8.0, 24.6 and 14.5. With
    zeros there are no registers to load ahead for the last two: one program fewer would fit on a multiprocessor, and
    some would start later (as compiled, all programs with norms are on the GPU at once). Dependents that start late
    gain 3 % of an fp8 layer (75.0 and 72.7 us with separate norms and activation), and nothing of an int4 layer (54.2
    and 54.9, fused).
    """
    num_features, size = weight.shape
    is_narrow, is_wide = num_features <= 4608, num_features > 12288
    if not weight.is_int4:
        block_k, num_splits = 256 if is_narrow else 128, 1 if is_wide else 4
        return SkinnyConfig(32, block_k, 4, 1, num_splits, warp_tiles=1, k_warps=2, starts_late=True)
    if is_wide or (is_narrow and size > 8192):
        num_stages = 2 if weight.zeros is None else 1
        return SkinnyConfig(64, 128, 4, num_stages, 1 if is_wide else 8, warp_tiles=2, k_warps=2)
    return SkinnyConfig(64, 512 if is_narrow else 256, 4, 1 if is_narrow else 2, 4, warp_tiles=2, k_warps=2)
