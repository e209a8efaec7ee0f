"""Decode attention with a fixed order of summation beside the usual kernel, us per layer on a GPU; and whether tiles
other than the table's give the same bits: `python -m loadtest.bench.ordered_attention`

Llama-8B's heads, bf16, blocks of 16, tables for 8,192 tokens per sequence. Variants with the same split length must
have the same bits; one that differs from the first is marked with `!`. Measured by replays of CUDA graphs over caches
larger than the L2 cache. Takes about 25 s; the last line is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import torch

from kernels.compile_ahead import compile_ahead
from kernels.ordered_attention_decode import OrderedDecodeConfig, ordered_attention_decode_triton
from kernels.paged_attention_decode import decode_batch, paged_attention_decode_triton
from kernels.replay_timing import seconds_by_replay

SEQUENCES_AND_CONTEXT = (
    (1, 384, False),
    (1, 8192, False),
    (8, 384, False),
    (64, 384, False),
    (256, 384, False),
    (64, 2048, False),
    (64, 600, True),
    (500, 600, True),
)
"""True: lengths vary from 1/3 to 5/3 of the context."""
SPLIT_LENS = (512,)
CONFIGS = [
    OrderedDecodeConfig(),
    OrderedDecodeConfig(num_stages=7),
    OrderedDecodeConfig(num_stages=9),
    OrderedDecodeConfig(16, num_warps=2, num_stages=4),
    OrderedDecodeConfig(16, num_warps=2, num_stages=5),
    OrderedDecodeConfig(16, num_warps=2, num_stages=7),
    OrderedDecodeConfig(16, num_warps=2, num_stages=9),
    OrderedDecodeConfig(16, num_warps=2, num_stages=4, programs_per_sm=8),
    OrderedDecodeConfig(16, num_warps=1, num_stages=4),
    OrderedDecodeConfig(16, num_warps=1, num_stages=5),
]
_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _BLOCK_SIZE, _TABLE_TOKENS = 32, 8, 128, 16, 8192
_LAYERS, _ROUNDS = 6, 3


def main() -> None:
    results = [result for each in SEQUENCES_AND_CONTEXT for result in _of(*each)]
    print(json.dumps(results))


def _of(num_seqs: int, context: int, is_spread: bool) -> list[dict[str, object]]:
    device = torch.device("cuda")
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device=device)
    if is_spread:
        lens = torch.linspace(context / 3, context * 5 / 3, num_seqs, device=device).int()
        lens = lens[torch.randperm(num_seqs, device=device)].contiguous()
    blocks_each = -(-int(lens.max()) // _BLOCK_SIZE)
    places = torch.randperm(num_seqs * blocks_each, device=device).to(torch.int32).view(num_seqs, blocks_each)
    table = torch.zeros(num_seqs, _TABLE_TOKENS // _BLOCK_SIZE, dtype=torch.int32, device=device)
    table[:, :blocks_each] = places
    shape = places.numel(), 2, _BLOCK_SIZE, _NUM_KV_HEADS, _HEAD_DIM
    caches = [torch.randn(shape, device=device).bfloat16() for _ in range(_LAYERS)]
    query = torch.randn(num_seqs, _NUM_HEADS, _HEAD_DIM, device=device).bfloat16()
    out, scale = torch.empty_like(query), _HEAD_DIM**-0.5

    def ways() -> dict[str, Callable[[torch.Tensor], None]]:
        batch = decode_batch(
            table, lens, _BLOCK_SIZE
        )  # a new one each time, since it keeps the lists that its first launch makes

        def usual(cache: torch.Tensor) -> None:
            paged_attention_decode_triton(query, cache[:, 0], cache[:, 1], batch, scale, out)

        def ordered(cache: torch.Tensor, split_len: int, config: OrderedDecodeConfig) -> None:
            ordered_attention_decode_triton(
                query, cache[:, 0], cache[:, 1], table, batch.rows, lens, _BLOCK_SIZE, split_len,
                *batch.order_and_arrivals, scale, out, config=config,
            )  # fmt: skip

        every: dict[str, Callable[[torch.Tensor], None]] = {"usual": usual}
        for split_len in SPLIT_LENS:
            for config in CONFIGS:
                every[f"{split_len} {config}"] = partial(ordered, split_len=split_len, config=config)
        return every

    compile_ahead(lambda: [way(caches[0]) for way in ways().values()])
    results, expected = list[dict[str, object]](), dict[str, torch.Tensor]()
    for name, way in ways().items():
        way(caches[0])
        torch.cuda.synchronize()
        same = torch.equal(out, expected.setdefault(name.split()[0], out.clone()))
        us = seconds_by_replay([partial(way, cache) for cache in caches], _ROUNDS) * 1e6
        print(
            f"{num_seqs:>4} x {'~' if is_spread else ''}{context:<5} {us:8.1f} us  {name}{'' if same else ' !'}",
            flush=True,
        )
        results.append(
            {
                "sequences": num_seqs,
                "context": context,
                "spread": is_spread,
                "way": name,
                "us": round(us, 1),
                "same": same,
            }
        )
    return results


if __name__ == "__main__":
    with torch.inference_mode():
        main()
