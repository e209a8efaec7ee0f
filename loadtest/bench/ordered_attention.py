"""How long decodes attend in one order on a GPU beside the usual kernel, us a layer, and whether other tiles than the
table's have the same bits: `python -m loadtest.bench.ordered_attention`

Llama-8B's heads, bf16, blocks of 16. By replays of CUDA graphs over caches of more bytes than the L2 cache holds. Some
15 s; the last line is JSON.
"""

from __future__ import annotations

import itertools
import json
from functools import partial

import torch

from kernels.compile_ahead import compile_ahead
from kernels.ordered_attention_decode import OrderedDecodeConfig, ordered_attention_decode_triton
from kernels.paged_attention_decode import decode_batch, paged_attention_decode_triton
from kernels.replay_timing import seconds_by_replay

SEQUENCES_AND_CONTEXT = ((1, 392), (1, 8192), (64, 392), (256, 392), (64, 2048))
CONFIGS = [
    OrderedDecodeConfig(),
    OrderedDecodeConfig(num_stages=2),
    OrderedDecodeConfig(num_stages=3),
    *(
        OrderedDecodeConfig(16, num_warps, num_stages, programs)
        for num_warps, num_stages, programs in itertools.product((1, 2), (3, 4), (4, 8))
    ),
]
_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _BLOCK_SIZE, _SPLIT_LEN = 32, 8, 128, 16, 512
_LAYERS, _ROUNDS = 6, 3


def main() -> None:
    results = [result for each in SEQUENCES_AND_CONTEXT for result in _of(*each)]
    print(json.dumps(results))


def _of(num_seqs: int, context: int) -> list[dict[str, object]]:
    device = torch.device("cuda")
    blocks_each = -(-context // _BLOCK_SIZE)
    table = torch.randperm(num_seqs * blocks_each, device=device).to(torch.int32).view(num_seqs, blocks_each)
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device=device)
    shape = table.numel(), 2, _BLOCK_SIZE, _NUM_KV_HEADS, _HEAD_DIM
    caches = [torch.randn(shape, device=device).bfloat16() for _ in range(_LAYERS)]
    query = torch.randn(num_seqs, _NUM_HEADS, _HEAD_DIM, device=device).bfloat16()
    batch = decode_batch(table, lens, _BLOCK_SIZE)
    out, scale = torch.empty_like(query), _HEAD_DIM**-0.5

    def usual(cache: torch.Tensor) -> None:
        paged_attention_decode_triton(query, cache[:, 0], cache[:, 1], batch, scale, out)

    def ordered(cache: torch.Tensor, config: OrderedDecodeConfig) -> None:
        ordered_attention_decode_triton(
            query, cache[:, 0], cache[:, 1], table, batch.rows, lens, _BLOCK_SIZE, _SPLIT_LEN, batch.arrivals, scale,
            out, config=config,
        )  # fmt: skip

    ways = {"usual": usual} | {str(config): partial(ordered, config=config) for config in CONFIGS}
    compile_ahead(lambda: [way(caches[0]) for way in ways.values()])
    results, expected = list[dict[str, object]](), out
    for name, way in ways.items():
        way(caches[0])
        torch.cuda.synchronize()
        if name == str(CONFIGS[0]):
            expected = out.clone()
        same = None if name == "usual" else torch.equal(out, expected)
        us = seconds_by_replay([partial(way, cache) for cache in caches], _ROUNDS) * 1e6
        print(f"{num_seqs:>4} x {context:<5} {us:8.1f} us  {name}{' !' if same is False else ''}", flush=True)
        results.append({"sequences": num_seqs, "context": context, "way": name, "us": round(us, 1), "same": same})
    return results


if __name__ == "__main__":
    with torch.inference_mode():
        main()
