"""Tile sizes of the attention kernels, in one table.

Shared memory decides what fits: a stage of the pipeline holds one tile of keys and one of values, and an sm_90
multiprocessor has 227 KB. If a tile is read through a block table, the table's entries are pipelined too: `num_stages`
3 keeps one tile in flight while another is used, 5 keeps two.

Measured on one H200 (torch 2.11, Triton 3.6, bf16, 32 heads, 8 kv heads, head dim 128, blocks of 16) with
`python -m loadtest.bench.attention_kernels --sweep`; us a layer. Head dims above 128 and fp32 have not been swept yet:
they use what fits. tests/kernels/test_sm90_compile.py compiles the 16-bit rows: WGMMA in prefill, no spills.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """block_kv: tokens per tile. Sequences are split so that the batch makes about `programs_per_sm` programs per
    multiprocessor, but no split is shorter than `min_tiles` tiles."""

    block_kv: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    min_tiles: int


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """block_m: rows of a program: query tokens x query heads of one kv head. block_kv: tokens per tile. max_registers:
    per thread; None leaves it to the compiler."""

    block_m: int
    block_kv: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillUnitsConfig:
    """block_kv: tokens per tile."""

    block_kv: int
    num_stages: int


_LARGE_TILES = DecodeConfig(128, num_warps=4, num_stages=5, programs_per_sm=1, min_tiles=1)
_SMALL_TILES = DecodeConfig(64, num_warps=2, num_stages=4, programs_per_sm=4, min_tiles=1)


_BESIDE_PROMPTS = DecodeConfig(64, num_warps=2, num_stages=5, programs_per_sm=4, min_tiles=1)
"""For decodes that run beside prompts (kernels/paged_attention_decode.py). A mixed step's graph has room for a full
batch of decodes, so their number says nothing here.

Decodes and prompts, us a layer on one H200; long: from 4,000 to 16,500 tokens; ~392: from 131 to 653. First row: one
after the other with the tiles for so many decodes alone; second: the same with those of a full batch.

decodes                     40 long    64 long   80 long  40 x ~392   64 x ~392   250 x ~392  1000 x ~300
prompt tokens / context     4k / 8k   4k / 12k  4k / 10k  200 / 200  2x256 / 256  7x256 / 256  12x256 / 256
one after the other            1036       1642      1303       39.2         50.4        130.9         341.9
the same, 32, 1 warp, 4, 4     1105       1817      1461       36.7         50.7        129.2         341.9
 32, 1 warp,  4, 4             1078       1674      1420       29.5         46.8        124.2         332.7
 64, 2 warps, 4, 4             1038       1614      1261       29.3         47.6        128.1             -
 64, 2 warps, 5, 4             1020       1611      1250       31.0         46.0        124.5         338.5
 64, 2 warps, 5, 6             1005       1592      1273       32.4         47.0        124.5         337.4
128, 4 warps, 5, 1             1017       1610      1245       30.7         50.6        151.2         453.2
"""


def decode_config(
    head_dim: int,
    dtype: torch.dtype,
    num_pairs: int,
    *,
    is_fp8: bool = False,
    keeps_l1: bool = False,
    is_beside: bool = False,
) -> DecodeConfig:
    """is_beside: as in `paged_attention_decode`.

    keeps_l1: as in DecodeBatch. For a kernel with more than 48 KB of shared memory Triton asks for the smallest L1
    cache, and kernels that overlap with it keep that setting. In Llama-8B with int4 weights, gate_up took 33 us and
    down 21 after such attention, 23 and 13 after attention with smaller tiles. With fp8 weights that gains 5 us per
    layer. From some 17,000 tokens of one sequence on, the larger tile would be worth it.

    is_fp8: of the cache. Its elements are unpacked in registers. Single warps, which wait for no others, are fastest
    for batches, two warps for one sequence; us as below:

    sequences x context      1x392  1x32k  8x4096  64x392  64x~392  256x392  1000x~300
     32, 1 warp,  4, 8          8.2   49.8    35.1    30.6     37.2     82.0      232.2
     64, 2 warps, 4, 4          7.6   48.3    40.4    32.4     42.1    110.3      303.6
    128, 4 warps, 3, 4          9.0   57.6    49.5    41.1     39.6    114.9      294.4

    On another H200; mid: from 300 to 2,000 tokens, long: from 4,000 to 16,000:

    sequences x context      16x392  16xmid  16xlong  32x392  32xmid  32xlong  48x392  48xlong  64x392  64xlong
     32, 1 warp,  4, 8         13.2    29.2    168.8    19.2    50.0    312.6    33.5    460.7    30.2    504.0
     32, 1 warp,  4, 6         15.1    25.0    130.8    20.5    41.7    254.1    26.1    393.1    29.6    465.6
     64, 2 warps, 4, 4         14.3    26.1    205.0    22.5    60.5    363.4    37.7    568.6    33.5    603.5

    Heads above 128 dims were not timed: they need twice the warps to avoid spills.
    """
    if is_beside and not keeps_l1 and dtype.itemsize == 2 and head_dim <= 128:
        return _BESIDE_PROMPTS
    config = _decode_config(head_dim, dtype, num_pairs)
    if keeps_l1 and not is_fp8 and config == _LARGE_TILES:
        return _SMALL_TILES
    if not is_fp8 or head_dim <= 64:
        return config
    if dtype.itemsize > 2 or head_dim > 128:
        return replace(config, num_warps=2 * config.num_warps)
    if num_pairs <= 32:
        return _SMALL_TILES
    if 128 <= num_pairs <= 512:
        return DecodeConfig(32, num_warps=1, num_stages=4, programs_per_sm=6, min_tiles=1)
    return DecodeConfig(32, num_warps=1, num_stages=4, programs_per_sm=8, min_tiles=1)


def _decode_config(head_dim: int, dtype: torch.dtype, num_pairs: int) -> DecodeConfig:
    """num_pairs: sequences x kv heads, the programs before splitting. Below: us per layer, for configs given as
    block_kv, warps, stages, programs_per_sm, min_tiles, with a block table as wide as the longest sequence. ~: lengths
    from a third of the given one to five thirds. The first row is from an older sweep.

    sequences x context      1x392  1x32k  8x392  8x4096  64x392  64x~392  128x~2048  256x392  256x~392  1000x~300
    128, 4 warps, 5, 1, 1      7.0   40.0   10.5    39.8       -        -          -        -         -          -
    128, 4 warps, 3, 2, 1      8.3   46.6   11.4    42.9    37.5     33.4      252.0    122.3     113.7      332.4
     64, 2 warps, 4, 4, 1      6.5   48.7    9.7    40.8    32.8     38.8      247.9    111.0     106.2      299.2
     64, 2 warps, 5, 2, 1      6.4   47.6   10.7    43.6    37.4     31.7      250.0    107.6     104.0      293.8
     32, 1 warp,  4, 4, 1      7.0   47.4   10.2    40.3    34.9     35.7      280.4    102.4     102.0      289.9
    by 4.67 TB/s               0.3   28.7    2.7    28.7    22.0     22.0      229.6     87.9      87.9      262.9

    On another H200; mid: from 300 to 2,000 tokens, long: from 4,000 to 16,000.

    sequences                8x392  8xlong  16x~392  16xlong  32x~392  32xmid  32xlong  48xlong  64x392  64xlong
    128, 4 warps, 5, 1, 1     10.6    89.1     13.1    173.1     20.5    49.4    294.1    458.0    43.6    585.8
     64, 2 warps, 4, 4, 1      9.5    94.6     12.6    197.1     21.4    57.2    333.0    495.8    32.2    620.6
     64, 2 warps, 5, 4, 1     11.4    82.8     14.3    166.7     24.1    52.0    297.0    469.1    37.3    594.2
    by 4.67 TB/s               2.8    61.4      4.9    136.8     11.7    36.7    278.3    437.8    22.0    573.2
    """
    if dtype.itemsize > 2 or head_dim > 128:
        if _padded(head_dim) * dtype.itemsize <= 512:
            return DecodeConfig(64, num_warps=4, num_stages=3, programs_per_sm=2, min_tiles=2)
        return DecodeConfig(32, num_warps=8, num_stages=3, programs_per_sm=2, min_tiles=2)
    if num_pairs <= 32 or 128 <= num_pairs <= 384:
        return _LARGE_TILES
    if num_pairs < 1536:
        return _SMALL_TILES
    return DecodeConfig(32, num_warps=1, num_stages=4, programs_per_sm=4, min_tiles=1)


def prefill_config(head_dim: int, dtype: torch.dtype, rows_per_sm: float, *, is_fp8: bool = False) -> PrefillConfig:
    """rows_per_sm: query tokens x heads / multiprocessors.

    Two programs on a multiprocessor overlap one's softmax with the other's products. That needs at most 128 registers
    per thread, and enough rows for two programs on each multiprocessor.

    tokens / context               512 / 512   1024 / 1024   2048 / 2048   8192 / 8192   512 / 16k   32 x 256 / 256
    128 x 64, 8 warps, 5 stages         16.0          31.6          98.6        1237.7       310.6            142.4
    128 x 64, 8 warps, 2, 128 reg.      19.8          35.6          81.9        1133.6       499.9            101.1
    64 x 64, 4 warps, 2 stages          15.3          33.1         107.8        1476.4       383.4            120.1

    Padded head dims (80, 96) need more: with 128 registers their loops spill (compiled for sm_90, not timed).

    An FP8 cache, whose elements are converted in registers (large chunks: kernels/widened_cache.py):

    tokens / context            4 x 1024 / 1024   2048 / 8192
    64 x 128, 4 warps, 3 stages           189.9         993.1
    128 x 32, 8 warps, 3, 128 reg.        180.3        1030.0
    128 x 64, 8 warps, 5 stages           219.3        1143.2
    a plain cache's                           -         487.7
    """
    if dtype.itemsize > 2:
        return PrefillConfig(32, 32, num_warps=4 if head_dim <= 128 else 8, num_stages=2)
    if head_dim > 128:
        return PrefillConfig(64, 32 if is_fp8 else 64, num_warps=8, num_stages=2)
    if is_fp8:
        return PrefillConfig(64, 128, num_warps=4, num_stages=3)
    if rows_per_sm >= 2 * 128 and head_dim == _padded(head_dim):
        return PrefillConfig(128, 64, num_warps=8, num_stages=2, max_registers=128)
    return PrefillConfig(128, 64, num_warps=8, num_stages=5)


_ROWS_FOR_UNITS = 512


def prefill_units_config(head_dim: int, rows_per_sm: float, longest_rows: int) -> PrefillUnitsConfig | None:
    """For 16-bit heads on Hopper (kernels/prefill_units.py); None: use prefill_config's. longest_rows: query tokens x
    query heads of one kv head, of the sequence with the most.

    us per layer on one H200, by graph replays of some ms; measured before programs took items in alternating
    directions:

    tokens / context            512 / 8k   2k / 8k   2k / 16k   4k / 12k   4 x 1k / 1k   8 x 512 / 2k   32 x 256 / 256
    128 tokens, 2 stages           108.4     381.5      784.7     1064.1         109.9          237.3            114.4
    64 tokens, 4 stages            127.9     446.4      914.7     1232.6         113.3          262.2             94.2
    prefill_config's               161.2     489.4     1005.7     1346.1         100.9          274.6            100.4

    So it loses a little on short prompts without a cached prefix. Few rows and 64 dims were not timed.
    """
    if head_dim != 128 or (longest_rows < _ROWS_FOR_UNITS and rows_per_sm < 2 * 128):
        return None
    return PrefillUnitsConfig(128, num_stages=2)


def ordered_prefill_config() -> PrefillConfig:
    """For a softmax that restarts at splits, with 16-bit heads of up to 128 dims: rows have their sums twice, and there
    are registers for that only if a multiprocessor runs one program. The same for any number of rows."""
    return PrefillConfig(128, 64, num_warps=8, num_stages=5)


@cache
def num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def _padded(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())
