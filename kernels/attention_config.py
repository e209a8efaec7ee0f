"""Tile sizes of the attention kernels, in one table.

Shared memory decides what fits: a stage of the pipeline holds one tile of keys and one of values, and an sm_90
program has 227 KB. Where a tile comes through a block table, `num_stages` counts the table's entries too: 3 keeps one
tile on its way while another is used, 5 keeps two.
tests/kernels/test_sm90_compile.py compiles the rows for 16-bit numbers: WGMMA in prefill, no spills.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """block_kv: tokens a tile. A sequence is split so that the whole batch makes about `programs_per_sm` programs a
    multiprocessor, but no split is shorter than `min_tiles` tiles."""

    block_kv: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    min_tiles: int


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """block_m: rows of a program, query tokens x heads of one kv head. block_kv: tokens a tile."""

    block_m: int
    block_kv: int
    num_warps: int
    num_stages: int


def decode_config(head_dim: int, dtype: torch.dtype) -> DecodeConfig:
    row_bytes = _padded(head_dim) * dtype.itemsize
    if row_bytes <= 256:
        return DecodeConfig(64, num_warps=4, num_stages=5, programs_per_sm=3, min_tiles=2)
    if row_bytes <= 512:
        return DecodeConfig(64, num_warps=4, num_stages=3, programs_per_sm=2, min_tiles=2)
    return DecodeConfig(32, num_warps=8, num_stages=3, programs_per_sm=2, min_tiles=2)


def prefill_config(head_dim: int, dtype: torch.dtype) -> PrefillConfig:
    if dtype == torch.float32:
        return PrefillConfig(32, 32, num_warps=4 if _padded(head_dim) <= 128 else 8, num_stages=2)
    if _padded(head_dim) <= 128:
        return PrefillConfig(64, 64, num_warps=4, num_stages=3)
    return PrefillConfig(64, 64, num_warps=8, num_stages=2)


def _padded(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())
