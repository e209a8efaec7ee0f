"""How close the attention kernels come to the device's limits; a part of `loadtest.bench kernels`.

Decode is bound by reading keys and values: TB/s, and % of a copy's rate. Prefill is bound by matrix products: TFLOP/s
over the scores inside the causal mask, and % of a GEMM's rate. Each round covers as many layers as overflow the
device's L2 cache. Without a GPU the reference implementations are measured, on small batches.

`python -m loadtest.bench.attention_kernels --sweep decode|prefill|arrivals [--fp8]` times many configurations, best
first: the tables of kernels/attention_config.py come from it. `arrivals`: a short prompt or two in the graph of a mixed
step, with its padding, by what the tables choose and by the other kernel. `--fp8`: with an 8-bit KV cache, and fewer
points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention_config import DecodeConfig, PrefillConfig
from kernels.fp8_cache import FP8, Cache, Fp8Cache, elements_of
from kernels.paged_attention_decode import decode_batch, paged_attention_decode, paged_attention_decode_triton
from kernels.paged_attention_prefill import paged_attention_prefill, paged_attention_prefill_triton, prefill_batch
from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.launch_timing import bench_device, seconds_of_launch
from loadtest.bench.report import print_table
from service.runner.graph_sizes import most_prompts

ROTATED_BYTES = 200e6  # more than three times the H200's L2
BLOCK_SIZE = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Heads:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of one cached token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * DTYPE.itemsize


def causal_flops(heads: Heads, query_lens: Sequence[int], context_lens: Sequence[int]) -> int:
    """FLOPs of both products, over the query-key pairs inside the causal mask."""
    seen = sum(n * c - n * (n - 1) // 2 for n, c in zip(query_lens, context_lens, strict=True))
    return 4 * heads.head_dim * heads.num_heads * seen


SHAPES = (Heads("Llama-8B", 32, 8, 128), Heads("Qwen3-0.6B", 16, 8, 128))
DECODE_GRID = [
    (1, 128),
    (1, 2048),
    (1, 32768),
    (8, 512),
    (8, 4096),
    (32, 1024),
    (64, 512),
    (64, 2048),
    (256, 128),
    (256, 1024),
]
CPU_DECODE_GRID = [(1, 128), (1, 2048), (8, 512)]
PREFILL_GRID = [([1024], [1024]), ([2048], [2048]), ([4096], [4096]), ([8192], [8192]), ([16384], [16384])]
CHUNK_GRID = [([2048], [8192]), ([512], [16384]), ([2048] * 4, [2048] * 4), ([256] * 32, [256] * 32)]

CPU_PREFILL_GRID = [([128], [128]), ([512], [512]), ([128], [1024])]


@dataclass(frozen=True)
class Caches:
    """Keys and values of a few layers, in blocks in random order, as the service stores them."""

    storage: Tensor
    heads: Heads
    block_size: int
    is_fp8: bool

    @classmethod
    def make(cls, heads: Heads, num_tokens: int, block_size: int = BLOCK_SIZE, *, is_fp8: bool = False) -> Caches:
        layers = max(2, min(512, int(ROTATED_BYTES / (num_tokens * heads.kv_bytes)) + 1))
        num_blocks = num_tokens // block_size
        if is_fp8:
            num_cells = block_size * heads.num_kv_heads
            shape = (num_blocks, layers, 2, num_cells * (heads.head_dim + 1))
            elements = torch.empty(shape, dtype=torch.uint8, device=bench_device()).random_(0, 120)
            elements[..., num_cells * heads.head_dim :] = 124
            return cls(elements, heads, block_size, is_fp8)
        shape = (num_blocks, layers, 2, block_size * heads.num_kv_heads * heads.head_dim)
        storage = torch.empty(shape, dtype=DTYPE, device=bench_device()).normal_()
        return cls(storage, heads, block_size, is_fp8)

    @property
    def layers(self) -> list[tuple[Cache, Cache]]:
        return [(self._cache(i, 0), self._cache(i, 1)) for i in range(self.storage.shape[1])]

    def _cache(self, layer: int, part: int) -> Cache:
        cells = (self.block_size, self.heads.num_kv_heads)
        num_elements = self.block_size * self.heads.num_kv_heads * self.heads.head_dim
        whole = self.storage[:, layer, part]
        elements = whole[:, :num_elements].unflatten(1, (*cells, self.heads.head_dim))
        return Fp8Cache(elements.view(FP8), whole[:, num_elements:].unflatten(1, cells)) if self.is_fp8 else elements

    def table(self, context_lens: Sequence[int]) -> Tensor:
        ids = torch.randperm(self.storage.shape[0], dtype=torch.int32)
        table = torch.zeros(len(context_lens), -(-max(context_lens) // self.block_size), dtype=torch.int32)
        start = 0
        for row, length in enumerate(context_lens):
            count = -(-length // self.block_size)
            table[row, :count] = ids[start : start + count]
            start += count
        return table.to(bench_device())


Layer = tuple[Cache, Cache]


def seconds_of_layer(run: Callable[[Layer], object], layers: list[Layer]) -> float:
    return seconds_of_launch([partial(run, layer) for layer in layers])


class DecodeWork:
    def __init__(
        self, heads: Heads, context_lens: Sequence[int], block_size: int = BLOCK_SIZE, *, is_fp8: bool = False
    ) -> None:
        blocks = sum(-(-length // block_size) for length in context_lens)
        self.bytes = sum(context_lens) * heads.kv_bytes
        self._caches = Caches.make(heads, blocks * block_size, block_size, is_fp8=is_fp8)
        lens = torch.tensor(context_lens, dtype=torch.int32, device=bench_device())
        self._batch = decode_batch(self._caches.table(context_lens), lens, block_size)
        self._query = torch.randn(len(context_lens), heads.num_heads, heads.head_dim, device=bench_device()).to(DTYPE)
        self.out = torch.empty_like(self._query)
        self._scale = heads.head_dim**-0.5

    def seconds(self, config: DecodeConfig | None = None) -> float:
        def run(layer: Layer) -> None:
            if config is None:
                paged_attention_decode(self._query, *layer, self._batch, self._scale, self.out)
            else:
                paged_attention_decode_triton(self._query, *layer, self._batch, self._scale, self.out, config=config)

        return seconds_of_layer(run, self._caches.layers)

    def contiguous_seconds(self) -> float:
        """torch's attention over contiguous keys and values: the cost of paging. Contexts must be equally long."""
        rows = [self.in_rows(*layer) for layer in self._caches.layers]
        return seconds_of_launch([partial(self.attend_contiguous, layer) for layer in rows])

    def in_rows(self, *caches: Cache) -> tuple[Tensor, Tensor]:
        """A layer's keys and values as contiguous [S, K, C, D]. Contexts must be whole blocks."""
        blocks = self._batch.block_table.long()
        keys, values = (elements_of(x)[blocks].flatten(1, 2).transpose(1, 2).contiguous() for x in caches)
        return keys, values

    def attend_contiguous(self, layer: tuple[Tensor, Tensor]) -> Tensor:
        """Attention over the tensors of `in_rows`: [S, H, D], as `out`."""
        query = self._query[:, :, None]
        return F.scaled_dot_product_attention(query, *layer, scale=self._scale, enable_gqa=True)[:, :, 0]


class PrefillWork:
    def __init__(
        self,
        heads: Heads,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_size: int = BLOCK_SIZE,
        *,
        is_fp8: bool = False,
        padded_to: int = 0,
    ) -> None:
        """padded_to: tokens of a CUDA graph that the step is padded to; 0: not padded."""
        self.flops = causal_flops(heads, query_lens, context_lens)
        num_tokens = sum(-(-length // block_size) * block_size for length in context_lens)
        self._caches = Caches.make(heads, num_tokens, block_size, is_fp8=is_fp8)
        lens = torch.tensor(context_lens, dtype=torch.int32, device=bench_device())
        starts = torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32).to(bench_device())
        rows = torch.arange(len(lens), device=bench_device())
        if padded_to:
            num_empty = most_prompts(padded_to) - len(lens)
            starts = F.pad(starts, (0, num_empty), value=sum(query_lens))
            lens, rows = F.pad(lens, (0, num_empty)), F.pad(rows, (0, num_empty))
        longest, num_rows = padded_to or max(query_lens), padded_to or sum(query_lens)
        self._batch = prefill_batch(self._caches.table(context_lens), starts, lens, longest, block_size, rows)
        self._query = torch.randn(num_rows, heads.num_heads, heads.head_dim, device=bench_device()).to(DTYPE)
        self.out = torch.zeros_like(self._query)
        self._scale = heads.head_dim**-0.5

    def seconds(self, config: PrefillConfig | None = None) -> float:
        def run(layer: Layer) -> None:
            if config is None:
                paged_attention_prefill(self._query, *layer, self._batch, self._scale, self.out)
            else:
                paged_attention_prefill_triton(self._query, *layer, self._batch, self._scale, self.out, config=config)

        return seconds_of_layer(run, self._caches.layers)

    def dense_seconds(self) -> float:
        """cuDNN's attention, for one whole prompt."""
        query = self._query.transpose(0, 1)[None]

        def run(layer: Layer) -> None:
            whole = (elements_of(x) for x in layer)
            keys, values = (x.reshape(1, -1, *x.shape[2:]).transpose(1, 2)[:, :, : query.shape[2]] for x in whole)
            F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)

        dense: list[Layer] = [
            (elements_of(k).contiguous(), elements_of(v).contiguous()) for k, v in self._caches.layers[:2]
        ]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return seconds_of_layer(run, dense)


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """Figures per layer. rate: bytes (decode) or operations (prefill) per second. share: of the device's limit.

    dense_rate: rate of torch's cuDNN attention over contiguous keys and values; only for a whole prompt.
    """

    model: str
    work: str
    microseconds: float
    rate: float
    share: float
    dense_rate: float | None = None


def measure_decode(limits: DeviceLimits) -> list[AttentionResult]:
    results, is_gpu = [], bench_device().type == "cuda"
    for heads in SHAPES:
        grid = DECODE_GRID if is_gpu else CPU_DECODE_GRID
        points = [(f"{batch} x {context}", [context] * batch) for batch, context in grid]
        if is_gpu:
            points.append(("32k + 63 x 128", [32768] + [128] * 63))
            points.append(("64 x 64..4096", list(range(64, 4097, 64))))
        for label, context_lens in points:
            work = DecodeWork(heads, context_lens)
            seconds = work.seconds()
            rate = work.bytes / seconds
            results.append(AttentionResult(heads.name, label, seconds * 1e6, rate, rate / limits.bytes_per_s))
    return results


def measure_prefill(limits: DeviceLimits) -> list[AttentionResult]:
    results, is_gpu = [], bench_device().type == "cuda"
    for heads in SHAPES:
        for query_lens, context_lens in PREFILL_GRID + CHUNK_GRID if is_gpu else CPU_PREFILL_GRID:
            times = f"{len(query_lens)} x " if len(query_lens) > 1 else ""
            label = f"{times}{query_lens[0]} / {context_lens[0]}"
            work = PrefillWork(heads, query_lens, context_lens)
            seconds = work.seconds()
            rate = work.flops / seconds
            is_whole = is_gpu and (query_lens, context_lens) in PREFILL_GRID
            dense = work.flops / work.dense_seconds() if is_whole else None
            results.append(AttentionResult(heads.name, label, seconds * 1e6, rate, rate / limits.flops_per_s, dense))
    return results


def print_decode(results: Sequence[AttentionResult]) -> None:
    rows = [
        [r.model, r.work, f"{r.microseconds:.1f}", f"{r.rate / 1e12:.3g}", f"{100 * r.share:.0f} %"] for r in results
    ]
    print_table(["decode attention", "batch x context", "us/layer", "TB/s", "of a copy's"], rows)


def print_prefill(results: Sequence[AttentionResult]) -> None:
    rows = [
        [
            r.model,
            r.work,
            f"{r.microseconds:.1f}",
            f"{r.rate / 1e12:.3g}",
            f"{100 * r.share:.0f} %",
            "" if r.dense_rate is None else f"{r.dense_rate / 1e12:.0f}",
        ]
        for r in results
    ]
    print_table(["prefill attention", "tokens / context", "us/layer", "TFLOP/s", "of a GEMM's", "cuDNN"], rows)


def sweep_decode(*, is_fp8: bool) -> None:
    """Print us per layer of the first shape, for each configuration and several batches."""
    even = [(1, 392), (1, 32768), (8, 392), (8, 4096), (32, 1024), (64, 392), (128, 392), (256, 128), (256, 392)]
    uneven = [(32, 280), (64, 392), (128, 392), (128, 2048), (256, 392), (1000, 300)]
    if is_fp8:
        even, uneven = [(1, 392), (1, 32768), (8, 4096), (64, 392), (256, 392)], [(64, 392), (1000, 300)]
    points = [[context] * batch for batch, context in even] + [_uneven(batch, context) for batch, context in uneven]
    labels = [f"{batch}x{context}" for batch, context in even] + [f"{batch}x~{context}" for batch, context in uneven]
    tiles = [(32, 1, 4), (32, 2, 4), (64, 2, 4), (64, 4, 5), (128, 4, 3), (128, 4, 5)]
    tiles += [(32, 1, 6), (32, 2, 6), (64, 4, 4), (128, 8, 5)] if is_fp8 else [(32, 1, 5), (64, 2, 3), (64, 2, 5)]
    all_programs = (1, 4, 8) if is_fp8 else (1, 2, 4, 6)
    configs = [DecodeConfig(*tile, programs, 1) for tile in tiles for programs in all_programs]
    _sweep([DecodeWork(SHAPES[0], lens, is_fp8=is_fp8) for lens in points], labels, configs)


def _uneven(batch: int, mean: int) -> list[int]:
    """Lengths from 1/3 to 5/3 of the mean, in no order, as in real traffic."""
    lens = torch.linspace(mean / 3, mean * 5 / 3, batch).int()
    return [int(length) for length in lens[torch.randperm(batch, generator=torch.Generator().manual_seed(0))]]


def sweep_prefill(*, is_fp8: bool) -> None:
    points = [*(([n], [n]) for n in (512, 1024, 2048, 4096, 8192)), ([512], [16384]), ([2048], [8192])]
    points += [([2048] * 4, [2048] * 4), ([256] * 32, [256] * 32)]
    points = [([2048], [2048]), ([2048], [8192]), ([256] * 32, [256] * 32)] if is_fp8 else points
    tiles = [*product((64,), (64,), (4,), (2, 3, 5)), *product((128,), (64, 128), (8,), (3, 5))]
    limited = [*product((128,), (32, 64), (8,), (2, 3), (128,)), (64, 64, 4, 2, 168)]
    configs = [PrefillConfig(*tile) for tile in tiles + limited]
    labels = [f"{len(q)}x{q[0]}/{c[0]}" for q, c in points]
    _sweep([PrefillWork(SHAPES[0], *lens, is_fp8=is_fp8) for lens in points], labels, configs)


def sweep_arrivals() -> None:
    """Print us per layer of the first shape for short prompts without a past, as they come one by one to a step of
    decodes: query tokens / tokens of the graph."""
    points = [([60], 64), ([120], 128), ([180], 192), ([240], 256), ([272], 320), ([368], 384), ([480], 512)]
    points += [([240, 260], 512), ([320, 420], 768)]
    labels = [f"{'+'.join(map(str, lens))}/{padded}" for lens, padded in points]
    works = [PrefillWork(SHAPES[0], lens, lens, padded_to=padded) for lens, padded in points]
    _sweep(works, labels, [None, PrefillConfig(128, 64, 8, 5), PrefillConfig(64, 64, 4, 2)])


def _sweep(works: Sequence[Any], labels: Iterable[str], configs: Sequence[Any]) -> None:
    """Print the configurations, best first. Fails unless all agree with the first one's result."""
    rows, wanted = [], list[Tensor]()
    for config in configs:
        try:
            rows.append(([work.seconds(config) * 1e6 for work in works], config))
        except triton.errors.TritonError as error:
            print(config, error)
            continue
        wanted = wanted or [work.out.clone() for work in works]
        for work, want in zip(works, wanted, strict=True):
            if not (work.out.float() - want.float()).norm() < 1e-2 * want.float().norm():
                print("WRONG", config)
    best = [min(times[i] for times, _ in rows) for i in range(len(works))]
    rows.sort(key=lambda row: sum(t / b for t, b in zip(row[0], best, strict=True)))
    print("us/layer:", *labels)
    for times, config in rows:
        print(" ".join(f"{t:8.1f}" for t in times), " ", *(["by the tables"] if config is None else astuple(config)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweep the attention kernels' configurations.")
    parser.add_argument("--sweep", choices=["decode", "prefill", "arrivals"], action="append", required=True)
    parser.add_argument("--fp8", action="store_true", help="use an 8-bit KV cache")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {DTYPE}, blocks of {BLOCK_SIZE}")
    if "decode" in arguments.sweep:
        sweep_decode(is_fp8=arguments.fp8)
    if "prefill" in arguments.sweep:
        sweep_prefill(is_fp8=arguments.fp8)
    if "arrivals" in arguments.sweep:
        sweep_arrivals()


if __name__ == "__main__":
    main()
