"""Launches of every kernel but attention, at Llama-8B's shapes, and the bytes that each must move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.apply_penalties import apply_penalties
from kernels.apply_token_bitmask import apply_token_bitmask
from kernels.copy_blocks import copy_blocks
from kernels.gelu_and_mul import gelu_and_mul
from kernels.greedy_tokens import greedy_tokens
from kernels.layer_norm import add_layer_norm
from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.lora_expand import lora_expand
from kernels.lora_shrink import lora_shrink
from kernels.lora_tensors import LoraTables, TokenSlots
from kernels.lora_tiles import lora_arrivals, most_tiles, token_tiles
from kernels.norm_linear import norm_linear
from kernels.reshape_and_cache import cache_slots, reshape_and_cache
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rotary_and_cache import rotary_and_cache
from kernels.rotary_embedding import rotary_embedding
from kernels.sample_tokens import sample_tokens
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_linear import new_arrivals, skinny_linear
from kernels.split_kv import SplitRule, split_items_triton
from kernels.token_logprobs import token_logprobs
from loadtest.bench.launch_timing import Launch, bench_device

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 14336, 32, 8, 128, 128256
QKV_HEADS = HEADS + 2 * KV_HEADS
LAYERS, BLOCK_SIZE = 32, 16
LINEARS = {
    "qkv": (QKV_HEADS * HEAD_DIM, HIDDEN),
    "output": (HIDDEN, HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCABULARY, HIDDEN),
}

LORA_RANK, MAX_LORA_RANK, MAX_LORAS = 16, 64, 64
LORA_PARTS = {  # for those of LINEARS that may have an adapter
    "qkv": (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM),
    "output": (HIDDEN,),
    "gate_up": (INTERMEDIATE, INTERMEDIATE),
    "down": (HIDDEN,),
}


@dataclass(frozen=True, slots=True)
class Case:
    """`make` returns a launch with its own inputs. num_bytes: the least that one launch must move."""

    name: str
    rows: int
    num_bytes: int
    make: Callable[[], Launch]


def random(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape) * scale).bfloat16()


def caches(num_blocks: int) -> Tensor:
    return torch.zeros((num_blocks, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM), dtype=torch.bfloat16)


def tables(rows: int) -> tuple[Tensor, Tensor]:
    angles = torch.randn(rows, HEAD_DIM // 2)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)


def layer_cases(rows: int) -> Iterable[Case]:
    """Kernels that a layer launches between its GEMMs, for `rows` tokens."""
    kv_bytes = rows * KV_HEADS * HEAD_DIM * 2
    table_bytes = rows * HEAD_DIM * 2 * 4
    turned_bytes = rows * (HEADS + KV_HEADS) * HEAD_DIM * 2

    def make_norm() -> Launch:
        x, weight = random(rows, HIDDEN), random(HIDDEN)
        return lambda: rms_norm(x, weight, 1e-5)

    def make_add_norm() -> Launch:
        x, residual, weight = random(rows, HIDDEN), random(rows, HIDDEN), random(HIDDEN)
        return lambda: add_rms_norm(x, residual, weight, 1e-5)

    def make_add_layer_norm() -> Launch:
        x, residual, weight = random(rows, HIDDEN), random(rows, HIDDEN), random(HIDDEN)
        return lambda: add_layer_norm(x, residual, weight, weight, 1e-5)

    def make_gelu() -> Launch:
        x = random(rows, 2 * INTERMEDIATE)
        return lambda: gelu_and_mul(x, "tanh")

    def make_silu() -> Launch:
        x = random(rows, 2 * INTERMEDIATE)
        return lambda: silu_and_mul(x)

    def make_rotary() -> Launch:
        qkv, (cos, sin) = random(rows, QKV_HEADS, HEAD_DIM), tables(rows)
        return lambda: rotary_embedding(qkv[:, : HEADS + KV_HEADS], cos, sin)

    def make_cache() -> Launch:
        qkv, storage = random(rows, QKV_HEADS, HEAD_DIM), caches(-(-rows // BLOCK_SIZE))
        slots = cache_slots(torch.randperm(rows), BLOCK_SIZE)
        key, value = qkv[:, HEADS : HEADS + KV_HEADS], qkv[:, HEADS + KV_HEADS :]
        return lambda: reshape_and_cache(key, value, storage[:, 0], storage[:, 1], slots)

    def make_rotary_and_cache(has_norm: bool) -> Launch:
        qkv, storage, (cos, sin) = random(rows, QKV_HEADS, HEAD_DIM), caches(-(-rows // BLOCK_SIZE)), tables(rows)
        slots = cache_slots(torch.randperm(rows), BLOCK_SIZE)
        weight = random(HEAD_DIM) if has_norm else None
        return lambda: rotary_and_cache(qkv, cos, sin, storage[:, 0], storage[:, 1], slots, weight, weight, 1e-6)

    yield Case("rms_norm", rows, rows * HIDDEN * 4, make_norm)
    yield Case("add_rms_norm", rows, rows * HIDDEN * 8, make_add_norm)
    yield Case("add_layer_norm", rows, rows * HIDDEN * 8, make_add_layer_norm)
    yield Case("silu_and_mul", rows, rows * INTERMEDIATE * 6, make_silu)
    yield Case("gelu_and_mul, tanh", rows, rows * INTERMEDIATE * 6, make_gelu)
    yield Case("rotary_embedding", rows, 2 * turned_bytes + table_bytes, make_rotary)
    yield Case("reshape_and_cache", rows, 4 * kv_bytes, make_cache)
    fused_bytes = 2 * turned_bytes + table_bytes + 3 * kv_bytes
    yield Case("rotary_and_cache", rows, fused_bytes, lambda: make_rotary_and_cache(False))
    yield Case("rotary_and_cache, q/k norm", rows, fused_bytes, lambda: make_rotary_and_cache(True))


def sampling_cases(rows: int) -> Iterable[Case]:
    num_bytes = rows * VOCABULARY * 2
    greedy = {"temperature": 0.0}
    kinds: dict[str, dict[str, float]] = {
        "greedy rows": greedy,
        "temperature": {},
        "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
        "top_p 0.9": {"top_p": 0.9},
        "top_p 0.9, peaked": {"top_p": 0.9, "scale": 4.0},
        "top_k 5000, top_p 0.9": {"top_k": 5000, "top_p": 0.9},
    }

    def make_greedy() -> Launch:
        logits = random(rows, VOCABULARY)
        return lambda: greedy_tokens(logits)

    def make_sample(parameters: dict[str, float], dtype: torch.dtype) -> Launch:
        logits = random(rows, VOCABULARY, scale=parameters.get("scale", 1.0)).to(dtype)
        temperature = torch.full((rows,), parameters.get("temperature", 1.0))
        top_k = torch.full((rows,), int(parameters.get("top_k", 0)), dtype=torch.int32)
        top_p = torch.full((rows,), parameters.get("top_p", 1.0))
        seeds = torch.arange(rows)
        return lambda: sample_tokens(logits, temperature, top_k, top_p, seeds, seeds)

    yield Case("greedy_tokens", rows, num_bytes, make_greedy)
    for name, parameters in kinds.items():
        yield Case(f"sample_tokens, {name}", rows, num_bytes, partial(make_sample, parameters, torch.bfloat16))
    fp32 = {"top_p": 0.9}
    yield Case("sample_tokens, top_p 0.9, fp32", rows, 2 * num_bytes, partial(make_sample, fp32, torch.float32))


def logits_cases(rows: int) -> Iterable[Case]:
    """Logits processing that only some requests ask for. Here every row does, and has seen a thousand tokens."""
    num_bytes = rows * VOCABULARY * 2

    def make_penalties() -> Launch:
        logits = random(rows, VOCABULARY)
        counts = torch.zeros(rows, VOCABULARY, dtype=torch.int32)
        counts.scatter_(1, torch.randint(0, VOCABULARY, (rows, 1000)), 2)
        slots = torch.arange(rows, dtype=torch.int32)
        one = torch.ones(rows)
        return lambda: apply_penalties(logits, counts, slots, one, one, one)

    def make_bitmask() -> Launch:
        logits = random(rows, VOCABULARY)
        bitmask = torch.randint(-(2**31), 2**31, (rows, VOCABULARY // 32), dtype=torch.int32)
        mask_rows = torch.arange(rows, dtype=torch.int32)
        return lambda: apply_token_bitmask(logits, bitmask, mask_rows)

    def make_logprobs() -> Launch:
        logits, token_ids = random(rows, VOCABULARY), torch.arange(rows)
        return lambda: token_logprobs(logits, token_ids, 20)

    yield Case("apply_penalties", rows, 2 * num_bytes, make_penalties)
    yield Case("apply_token_bitmask", rows, num_bytes, make_bitmask)
    yield Case("token_logprobs, 20", rows, num_bytes, make_logprobs)


def block_cases(num_blocks: int) -> Iterable[Case]:
    """Kernels that move whole blocks of all layers, 2 MB each."""
    shape = (LAYERS, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    block_bytes = 2 * LAYERS * 2 * BLOCK_SIZE * KV_HEADS * HEAD_DIM

    def make() -> Launch:
        storage = torch.zeros((2 * num_blocks, *shape), dtype=torch.bfloat16)
        ids = torch.randperm(2 * num_blocks)
        sources, destinations = ids[:num_blocks], ids[num_blocks:]
        return lambda: copy_blocks(storage, sources, destinations)

    yield Case("copy_blocks", num_blocks, 2 * num_blocks * block_bytes, make)


def split_cases(rows: int) -> Iterable[Case]:
    """What decode attention launches once per step."""
    rule = SplitRule(block_kv=64, splits_wanted=66, min_tiles=1)

    def make() -> Launch:
        lens, table_rows = torch.full((rows,), 330, dtype=torch.int32), torch.arange(rows)
        return lambda: split_items_triton(lens, table_rows, rule, rule.most_items(rows, 8192))

    yield Case("split_items", rows, 32 * rule.most_items(rows, 8192), make)


def linear_cases(rows: int) -> Iterable[Case]:
    def make(features: int, size: int) -> Launch:
        x, weight = random(rows, size), random(features, size, scale=size**-0.5)
        arrivals = new_arrivals(features, x.device)
        return lambda: skinny_linear(x, weight, arrivals=arrivals)

    def make_cublas(features: int, size: int) -> Launch:
        x, weight = random(rows, size), random(features, size, scale=size**-0.5)
        return lambda: torch.nn.functional.linear(x, weight)

    def make_add_norm(features: int, size: int) -> Launch:
        x, weight, residual = random(rows, size), random(features, size, scale=size**-0.5), random(rows, features)
        norm_weight, arrivals = random(features), new_arrivals(features, x.device)
        return lambda: linear_add_norm(x, weight, None, residual, norm_weight, 1e-5, arrivals)

    def make_behind_norm(features: int, size: int) -> Launch:
        squares = torch.rand(size // 32, 64, dtype=torch.float32)
        normed = DeferredNorm(random(rows, size), squares, 1e-5)
        weight, arrivals = random(features, size, scale=size**-0.5), new_arrivals(features, squares.device)
        return lambda: norm_linear(normed, weight, None, arrivals, gated=features == 2 * INTERMEDIATE)

    with_norm = {
        "output": ("linear_add_norm", make_add_norm),
        "down": ("linear_add_norm", make_add_norm),
        "qkv": ("norm_linear", make_behind_norm),
        "gate_up": ("norm_linear", make_behind_norm),
    }
    for name, (features, size) in LINEARS.items():
        num_bytes = 2 * (features * size + rows * (features + size))
        yield Case(f"skinny_linear, {name}", rows, num_bytes, partial(make, features, size))
        yield Case(f"cuBLAS, {name}", rows, num_bytes, partial(make_cublas, features, size))
        if name in with_norm:
            kernel, make_case = with_norm[name]
            yield Case(f"{kernel}, {name}", rows, num_bytes, partial(make_case, features, size))


def lora_tables(num_adapters: int, size: int, parts: tuple[int, ...]) -> LoraTables:
    """Tables of slots 1 to num_adapters, in order: each adapter's rows of A, then those of B."""
    row_sizes = torch.tensor([size] * len(parts) + list(parts)).repeat_interleave(LORA_RANK).repeat(num_adapters)
    ends = row_sizes.cumsum(0)
    offsets = torch.zeros(2, 1 + num_adapters, len(parts), MAX_LORA_RANK, dtype=torch.int64)
    starts = (ends - row_sizes).view(num_adapters, 2, len(parts), LORA_RANK)
    offsets[:, 1:, :, :LORA_RANK] = starts.transpose(0, 1)
    ranks = torch.full((1 + num_adapters, len(parts)), LORA_RANK, dtype=torch.int32)
    pool = random(int(ends[-1]), scale=LORA_RANK**-0.5)
    arrivals = lora_arrivals(num_adapters, bench_device())
    return LoraTables(pool, offsets[0], offsets[1], ranks, torch.ones(ranks.shape), parts, 8, arrivals)


def lora_cases(rows: int, num_adapters: int) -> Iterable[Case]:
    """LoRA kernels on rows of `num_adapters` adapters, the same number of rows each, interleaved: neighbouring rows
    have different adapters, as arrival order gives them."""

    def inputs(size: int, parts: tuple[int, ...]) -> tuple[Tensor, TokenSlots, LoraTables]:
        slots = (1 + torch.arange(rows, device="cpu") % num_adapters).to(torch.int32)
        tiles = token_tiles(slots.numpy(), most_tiles(rows, max(MAX_LORAS, num_adapters)))
        token_slots = TokenSlots(slots.to(bench_device()), torch.as_tensor(tiles))
        return random(rows, size), token_slots, lora_tables(num_adapters, size, parts)

    def make_shrink(size: int, parts: tuple[int, ...]) -> Launch:
        x, token_slots, tables = inputs(size, parts)
        return lambda: lora_shrink(x, token_slots, tables)

    def make_expand(size: int, parts: tuple[int, ...]) -> Launch:
        x, token_slots, tables = inputs(size, parts)
        shrunk, y = lora_shrink(x, token_slots, tables), random(rows, sum(parts))
        return lambda: lora_expand(shrunk, token_slots, tables, y)

    for name, parts in LORA_PARTS.items():
        size, num_outputs = LINEARS[name][1], sum(parts)
        of_adapters = f"{name}, {num_adapters} adapters"
        shrunk_bytes = 4 * rows * len(parts) * LORA_RANK
        a_bytes, b_bytes = (2 * num_adapters * LORA_RANK * row for row in (len(parts) * size, num_outputs))
        shrink_bytes = a_bytes + 2 * rows * size + shrunk_bytes
        expand_bytes = b_bytes + 4 * rows * num_outputs + shrunk_bytes
        yield Case(f"lora_shrink, {of_adapters}", rows, shrink_bytes, partial(make_shrink, size, parts))
        yield Case(f"lora_expand, {of_adapters}", rows, expand_bytes, partial(make_expand, size, parts))


def all_cases() -> Iterable[Case]:
    """The cases for the device of this machine."""
    yield from _gpu_cases() if bench_device().type == "cuda" else _cpu_cases()


def _gpu_cases() -> Iterable[Case]:
    for rows in (1, 8, 64, 256, 2048):
        yield from layer_cases(rows)
    for rows in (1, 8, 64, 256):
        yield from sampling_cases(rows)
        yield from logits_cases(rows)
    for num_blocks in (1, 16):
        yield from block_cases(num_blocks)
    for rows in (1, 8, 16, 64):
        yield from linear_cases(rows)
    for rows in (1, 64, 256):
        yield from split_cases(rows)
    for rows, num_adapters in ((1, 1), (64, 1), (64, 8), (64, 64), (256, 8), (256, 256), (2048, 1), (2048, 8)):
        yield from lora_cases(rows, num_adapters)


def _cpu_cases() -> Iterable[Case]:
    for rows in (1, 8, 128):
        yield from layer_cases(rows)
    for rows in (1, 8):
        yield from sampling_cases(rows)
        yield from logits_cases(rows)
    for rows, num_adapters in ((1, 1), (8, 1), (8, 8), (64, 8)):
        yield from lora_cases(rows, num_adapters)
    yield from block_cases(1)
