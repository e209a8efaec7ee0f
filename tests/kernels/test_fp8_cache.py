"""Keys and values of eight bits: what is written, what is read, and that the kernels of attention do both alike."""

from __future__ import annotations

import pytest
import torch

from kernels import widened_cache
from kernels.fp8_cache import FP8, Fp8Cache, from_fp8, read_blocks, to_fp8
from kernels.paged_attention_decode import decode_batch, paged_attention_decode, paged_attention_decode_triton
from kernels.paged_attention_prefill import (
    paged_attention_prefill,
    paged_attention_prefill_triton,
    paged_attention_prefill_widened_triton,
    prefill_batch,
)
from kernels.reshape_and_cache import cache_slots, reshape_and_cache, reshape_and_cache_triton
from kernels.rotary_and_cache import rotary_and_cache, rotary_and_cache_triton
from tests.kernels.attention_lanes import VARIANTS, assert_close
from tests.kernels.lanes import LANES
from tests.kernels.paged_case import naive_attention, paged_case

BLOCK_SIZE = 4


def of_all_sizes(*shape: int) -> torch.Tensor:
    """Heads that differ by 2^24 in size, as no one scale would hold them."""
    return torch.randn(shape) * torch.exp2(torch.randint(-12, 13, shape[:-1]))[..., None]


def storage_of(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> torch.Tensor:
    """Of one layer; NaN by element and by exponent in every cell. As many bytes a block as make whole heads."""
    num_heads = block_size * num_kv_heads
    return torch.full(
        (num_blocks, 2, num_heads * head_dim + -(-num_heads // head_dim) * head_dim), 255, dtype=torch.uint8
    )


def caches_in(storage: torch.Tensor, block_size: int, num_kv_heads: int, head_dim: int) -> list[Fp8Cache]:
    size = block_size * num_kv_heads * head_dim
    cells = block_size, num_kv_heads, head_dim
    return [
        Fp8Cache(
            part[:, :size].view(FP8).unflatten(1, cells),
            part[:, size:][:, : size // head_dim].unflatten(1, cells[:-1]),
        )
        for part in storage.unbind(1)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_comes_back_within_a_sixteenth(dtype):
    heads = of_all_sizes(500, 3, 20).to(dtype)
    heads[0, 0] = 0
    elements, exponents = to_fp8(heads)
    assert elements.dtype == FP8 and exponents.dtype == torch.uint8 and exponents.shape == (500, 3)
    largest = heads.float().abs().amax(-1, keepdim=True)
    back = from_fp8(elements, exponents, dtype)
    assert ((back.float() - heads.float()).abs() <= torch.maximum(heads.float().abs() / 16, largest * 2**-17)).all()
    assert torch.equal(back.float(), from_fp8(elements, exponents, torch.float32)), "exact in the narrower type"
    top = elements.float().abs().amax(-1)[largest[..., 0] > 0]
    assert (top <= 448).all() and (top >= 224).all(), "no bit of e4m3's range is wasted"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whatever_the_bytes_say_is_what_torch_makes_of_them(dtype):
    """Each element with each scale, NaN and infinity among them."""
    elements = torch.arange(256, dtype=torch.uint8).view(FP8).repeat(256, 1)
    scales = torch.cat((torch.tensor([0.0]), torch.exp2(torch.arange(-126.0, 128)), torch.tensor([torch.inf])))
    said = from_fp8(elements, torch.arange(256, dtype=torch.uint8), dtype)
    expected = (elements.float() * scales[:, None]).to(dtype)
    assert said.dtype == dtype
    torch.testing.assert_close(said, expected, rtol=0, atol=0, equal_nan=True)


def test_the_bounds_of_the_exponent():
    heads = torch.tensor([[448.0, 1], [448.0 * (1 + 2**-20), 1], [3e38, 1e38], [1e-44, 0]])
    elements, exponents = to_fp8(heads)
    assert exponents.tolist() == [127, 128, 247, 1]
    assert elements.float().isfinite().all()


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), -float("inf")])
def test_a_fault_stays_in_its_head_and_does_not_become_a_number(fault):
    heads = torch.ones(2, 3, 8)
    heads[0, 1, 5] = fault
    back = from_fp8(*to_fp8(heads), torch.float32)
    assert not back[0, 1].isfinite().any()
    back[0, 1] = 1
    assert torch.equal(back, torch.ones(2, 3, 8))


def is_near(got: torch.Tensor, want: torch.Tensor, lane: str) -> bool:
    """Triton's interpreter loses the carry where a mantissa is rounded up to the next power of two."""
    largest = want.abs().amax(-1, keepdim=True)
    near = (got - want).abs() <= torch.maximum(want.abs() * (1 / 16 + 1e-5), largest * 2**-16)
    return bool(near.all()) if lane != "interpret" else float(near.float().mean()) > 0.95


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("way", ["reshape", "turn", "turn a part", "norm and turn"])
def test_tokens_are_written_to_their_cells_alone(way, lane):
    num_tokens, num_heads, num_kv_heads, head_dim = 9, 4, 3, 24
    qkv = torch.cat((torch.randn(num_tokens, num_heads, head_dim), of_all_sizes(num_tokens, 6, head_dim)), 1)
    qkv[2, num_heads:] = 0
    slots = torch.randperm(5 * BLOCK_SIZE)[:num_tokens]
    slots[4] = -1
    storage = lane.put(storage_of(5, BLOCK_SIZE, num_kv_heads, head_dim))
    caches = caches_in(storage, BLOCK_SIZE, num_kv_heads, head_dim)
    there = lane.put(qkv)
    key, value = there[:, num_heads:-num_kv_heads], there[:, -num_kv_heads:]
    if way == "reshape":
        write = lane(reshape_and_cache, reshape_and_cache_triton)
        write(key, value, *caches, cache_slots(lane.put(slots), BLOCK_SIZE))
    else:
        rotary_dim = head_dim if way != "turn a part" else 8
        angles = lane.put(torch.randn(num_tokens, rotary_dim))
        norms = [torch.rand(head_dim).to(lane.device) + 0.5] * 2 if way == "norm and turn" else [None, None]
        write = lane(rotary_and_cache, rotary_and_cache_triton)
        cells = cache_slots(lane.put(slots), BLOCK_SIZE)
        write(there, angles.cos(), angles.sin(), *caches, cells, *norms, 1e-5)  # which turns and norms keys in place
    flat = [read_blocks(cache, torch.arange(5, device=lane.device), torch.float32).flatten(0, 1) for cache in caches]
    for cells, heads in zip(flat, (key, value), strict=True):
        written = slots[slots >= 0]
        assert is_near(cells.cpu()[written], heads.cpu()[slots >= 0], lane.name)
        others = [slot for slot in range(5 * BLOCK_SIZE) if slot not in written]
        assert cells[others].isnan().all()
    if lane.name != "interpret":
        elements, exponents = to_fp8(key)
        block, offset = slots[0] // BLOCK_SIZE, slots[0] % BLOCK_SIZE
        assert torch.equal(caches[0].exponents[block, offset], exponents[0])
        assert torch.equal(caches[0].elements[block, offset].float(), elements[0].float())


def fp8_case(context_lens, block_size, num_kv_heads, head_dim, dtype, lane):
    """A case whose keys and values are those that came of rounding; its storage, on the lane's device."""
    case = paged_case(context_lens, block_size, num_kv_heads, head_dim, torch.float32)
    storage = storage_of(len(case.key_cache), block_size, num_kv_heads, head_dim)
    for cache, plain in zip(
        caches_in(storage, block_size, num_kv_heads, head_dim), (case.key_cache, case.value_cache), strict=True
    ):
        sizes = torch.exp2(torch.randint(-3, 2, plain.shape[:-1]))[..., None]
        elements, exponents = to_fp8(plain * sizes)
        cache.elements.copy_(elements)
        cache.exponents.copy_(exponents)
    caches = caches_in(storage, block_size, num_kv_heads, head_dim)
    for seq, length in enumerate(context_lens):
        blocks = case.block_table[seq, : -(-length // block_size)]
        for kept, cache in zip((case.keys, case.values), caches, strict=True):
            kept[seq] = read_blocks(cache, blocks, dtype).flatten(0, 1)[:length]
    return case, caches_in(lane.put(storage), block_size, num_kv_heads, head_dim)


OPTIONS = [{}, {"sliding_window": 20}, {"logit_softcap": 2.0}]


@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "soft cap"])
def test_decode_reads_what_is_there(options, lane, dtype):
    case, caches = fp8_case([5, 150, 0, 33], 16, 2, 20, dtype, lane)
    query = torch.randn(4, 6, 20).to(dtype)
    out = torch.zeros_like(query).to(lane.device)
    batch = decode_batch(lane.put(case.block_table), lane.put(case.context_lens), 16)
    attend = lane(paged_attention_decode, paged_attention_decode_triton)
    attend(lane.put(query), *caches, batch, 0.3, out, **options)
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        if len(keys):
            assert_close(out[row].cpu(), attended(query[row], keys, values, options))


@pytest.mark.pairwise
@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "soft cap"])
def test_prefill_reads_what_is_there(options, block_size, lane, dtype):
    """Blocks that hold a tile, and tiles that hold blocks."""
    query_lens = [30, 1, 20]
    case, caches = fp8_case([30, 20, 150], block_size, 2, 20, dtype, lane)
    query = torch.randn(sum(query_lens), 6, 20).to(dtype)
    out = torch.zeros_like(query).to(lane.device)
    starts = torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32)
    batch = prefill_batch(lane.put(case.block_table), lane.put(starts), lane.put(case.context_lens), 30, block_size)
    attend = lane(paged_attention_prefill, paged_attention_prefill_triton)
    attend(lane.put(query), *caches, batch, 0.3, out, **options)
    for seq, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        for i in range(query_lens[seq]):
            row, stop = int(starts[seq]) + i, len(keys) - query_lens[seq] + i + 1
            assert_close(out[row].cpu(), attended(query[row], keys[:stop], values[:stop], options))


@pytest.mark.pairwise
@pytest.mark.parametrize(("lane", "dtype"), [each for each in VARIANTS if each.values[0].name != "reference"])
@pytest.mark.parametrize("most_blocks", [64, 5, 2])
@pytest.mark.parametrize("options", [{}, {"logit_softcap": 2.0}], ids=["plain", "soft cap"])
def test_prefill_reads_the_same_where_it_is_widened_first(options, most_blocks, lane, dtype, monkeypatch):
    """As far as there is room."""
    query_lens, context_lens = [30, 0, 20, 3], [30, 40, 150, 3]
    case, caches = fp8_case(context_lens, 16, 2, 20, dtype, lane)
    monkeypatch.setattr(widened_cache, "MOST_BYTES", most_blocks * 16 * 2 * 2 * 20 * dtype.itemsize)
    query = torch.randn(sum(query_lens), 6, 20).to(dtype)
    out = torch.zeros_like(query).to(lane.device)
    starts = torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32)
    batch = prefill_batch(lane.put(case.block_table), lane.put(starts), lane.put(case.context_lens), 30, 16)
    paged_attention_prefill_widened_triton(lane.put(query), *caches, batch, 0.3, out, **options)
    for seq, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        for i in range(query_lens[seq]):
            row, stop = int(starts[seq]) + i, len(keys) - query_lens[seq] + i + 1
            assert_close(out[row].cpu(), attended(query[row], keys[:stop], values[:stop], options))


def attended(query, keys, values, options):
    if window := options.get("sliding_window"):
        keys, values = keys[-window:], values[-window:]
    if (cap := options.get("logit_softcap")) is None:
        return naive_attention(query, keys, values, 0.3)
    group = query.shape[0] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = cap * (torch.einsum("hd,chd->hc", query.double(), keys) * 0.3 / cap).tanh()
    return torch.einsum("hc,chd->hd", scores.softmax(-1), values)
