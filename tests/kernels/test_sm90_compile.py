"""Kernels as an H100 or H200 would run them, compiled here: matrix units used, nothing spilled.

Half a second each: a few tiles of each kernel, all of them with TEST_EXAMPLES=10, as tests/run_on_gpu.sh runs them.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from dataclasses import replace

import pytest
import torch

from kernels import cross_entropy as entropy
from kernels import expert_blocks, fp8_linear, split_kv
from kernels import experts_down as down
from kernels import experts_gate_up as gate_up
from kernels import gated_linear as gated
from kernels import linear_add_norm as before
from kernels import lora_expand as expand
from kernels import lora_gated_expand as gated_expand
from kernels import lora_shrink as shrink
from kernels import move_blocks as move
from kernels import norm_linear as behind
from kernels import ordered_attention_decode as ordered_decode
from kernels import ordered_linear as ordered
from kernels import paged_attention_decode as decode
from kernels import paged_attention_prefill as prefill
from kernels import route_to_experts as routing
from kernels import skinny_linear as skinny
from kernels.fp8_cache import Fp8Cache
from kernels.grouped_product import FP8, INT4, MXFP4, PLAIN, ExpertWeight, GroupedConfig, grouped_config, usual_tile
from kernels.mxfp4 import pack_scales
from tests.examples import spread
from tests.kernels.lora_case import LoraCase, token_slots
from tests.kernels.quantized_weights import random_weight

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from tests.kernels.sm90 import (
        CUOBJDUMP,
        Launch,
        LaunchRecorder,
        compile_for_sm90,
        layouts_of_assembly,
        ptx_for_sm90,
    )

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed"),
    pytest.mark.skipif(HAS_TRITON and not CUOBJDUMP.exists(), reason="this Triton comes without NVIDIA's tools"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing"),
]
SHARED_MEMORY_BYTES, REGISTERS = 227 * 1024, 65536


def tensors(num_rows, num_heads, num_kv_heads, head_dim):
    query = torch.zeros(num_rows, num_heads, head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(4, 16, num_kv_heads, head_dim, dtype=torch.bfloat16)
    return query, cache, torch.empty_like(query)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def check(compiled, most_spills=0, *, in_registers=False):
    """in_registers: nothing is copied to shared memory ahead."""
    assert in_registers == ("cp.async.cg.shared.global" not in compiled.ptx)
    assert compiled.spills_in_loops <= most_spills
    assert compiled.shared_bytes <= SHARED_MEMORY_BYTES


def with_pdl(launch):
    return Launch(launch.kernel, launch.grid, launch.args, {"enable_fp_fusion": True, **launch.options, "PDL": True})


def launch_of_decode(monkeypatch, num_seqs, num_heads, num_kv_heads, head_dim, sliding_window=None, has_sinks=False):
    recorder = LaunchRecorder(decode._paged_attention_decode_kernel)
    monkeypatch.setattr(decode, "_paged_attention_decode_kernel", recorder)
    monkeypatch.setattr(split_kv, "_split_items_kernel", LaunchRecorder(split_kv._split_items_kernel))
    query, cache, out = tensors(num_seqs, num_heads, num_kv_heads, head_dim)
    batch = decode.decode_batch(int32(0).expand(num_seqs, 1), int32(*[16] * num_seqs), 16)
    sinks = query[0, :, 0].contiguous() if has_sinks else None
    decode.paged_attention_decode_triton(query, cache, cache, batch, 0.1, out, sliding_window, sinks=sinks)
    return recorder.launches[0]


DECODES = [
    pytest.param(5, 32, 8, 128, None, False, id="a few"),
    pytest.param(1, 32, 8, 128, None, False, id="one"),
    pytest.param(128, 32, 8, 128, None, False, id="many"),
    pytest.param(192, 32, 8, 128, None, False, id="many more"),
    pytest.param(1, 8, 4, 256, None, False, id="wide heads"),
    pytest.param(5, 32, 8, 128, 4096, False, id="a window"),
    pytest.param(5, 32, 32, 80, None, False, id="heads of 80"),
    pytest.param(5, 64, 8, 64, 128, True, id="gpt-oss"),
]


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "num_kv_heads", "head_dim", "sliding_window", "has_sinks"), spread(DECODES, 2)
)
def test_decode(num_seqs, num_heads, num_kv_heads, head_dim, sliding_window, has_sinks, monkeypatch, tmp_path):
    launch = launch_of_decode(monkeypatch, num_seqs, num_heads, num_kv_heads, head_dim, sliding_window, has_sinks)
    compiled = compile_for_sm90(with_pdl(launch), tmp_path)
    assert "mma.sync" in compiled.ptx
    check(compiled)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode_beside_kernels_that_read_from_l1_takes_little_shared_memory(head_dim, monkeypatch, tmp_path):
    make = decode.decode_batch
    monkeypatch.setattr(decode, "decode_batch", lambda *args: replace(make(*args), keeps_l1=True))
    compiled = compile_for_sm90(with_pdl(launch_of_decode(monkeypatch, 1, 32, 8, head_dim)), tmp_path)
    assert compiled.shared_bytes <= 48 * 1024  # with more Triton asks for a small L1 cache


def test_decode_looks_up_its_item_before_it_waits(monkeypatch, tmp_path):
    ptx = compile_for_sm90(with_pdl(launch_of_decode(monkeypatch, 5, 32, 8, 128)), tmp_path).ptx
    places = [ptx.index(part) for part in ("griddepcontrol.launch_dependents", "ld.global", "griddepcontrol.wait")]
    assert places == sorted(places)
    assert ptx.index("griddepcontrol.wait") < min(ptx.index("cp.async.cg"), ptx.index("st.global"))


PREFILLS = [
    pytest.param(128, 32, 8, 128, None, False, id="many rows"),
    pytest.param(16, 32, 8, 128, None, False, id="few rows"),
    pytest.param(16, 8, 4, 256, None, False, id="wide heads"),
    pytest.param(128, 32, 32, 80, None, False, id="heads of 80"),
    pytest.param(16, 32, 8, 128, 4096, False, id="a window"),
    pytest.param(128, 64, 8, 64, 128, True, id="gpt-oss"),
]


@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim", "sliding_window", "has_sinks"), spread(PREFILLS, 1)
)
def test_prefill(num_tokens, num_heads, num_kv_heads, head_dim, sliding_window, has_sinks, monkeypatch, tmp_path):
    recorder = LaunchRecorder(prefill._paged_attention_prefill_kernel)
    monkeypatch.setattr(prefill, "_paged_attention_prefill_kernel", recorder)
    query, cache, out = tensors(num_tokens, num_heads, num_kv_heads, head_dim)
    batch = prefill.prefill_batch(int32(0)[None], int32(0, num_tokens), int32(num_tokens), num_tokens, 16)
    sinks = query[0, :, 0].contiguous() if has_sinks else None
    prefill.paged_attention_prefill_triton(query, cache, cache, batch, 0.1, out, sliding_window, sinks=sinks)
    compiled = compile_for_sm90(recorder.launches[0], tmp_path)
    assert "wgmma.mma_async" in compiled.ptx
    assert "mma.sync" not in compiled.ptx
    check(compiled)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "window"), spread([(32, 8, 128, None), (14, 2, 64, 4096)], 1)
)
def test_ordered_attention(num_heads, num_kv_heads, head_dim, window, monkeypatch, tmp_path):
    """Prompts and decodes by instructions of as many inputs."""
    for module, name in (
        (prefill, "_paged_attention_prefill_kernel"),
        (ordered_decode, "_ordered_attention_decode_kernel"),
    ):
        monkeypatch.setattr(module, name, LaunchRecorder(getattr(module, name)))
    query, cache, out = tensors(1024, num_heads, num_kv_heads, head_dim)
    batch = prefill.prefill_batch(int32(0)[None], int32(0, 1024), int32(1024), 1024, 16, split_len=512)
    prefill.paged_attention_prefill_triton(query, cache, cache, batch, 0.1, out, window)
    for count in spread((1, 16, 64, 1024), 2):
        table, lens, arrivals = (
            int32(0).expand(count, 1),
            int32(*[16] * count),
            torch.zeros(count, 8, dtype=torch.int32),
        )
        order = torch.arange(count, dtype=torch.int32)
        of_cache = cache, cache, table, torch.arange(count), lens, 16, 512, order, arrivals, 0.1
        ordered_decode.ordered_attention_decode_triton(query[:count], *of_cache, out[:count], window)
    as_prompt = compile_for_sm90(prefill._paged_attention_prefill_kernel.launches[0], tmp_path)
    decodes = ordered_decode._ordered_attention_decode_kernel.launches
    assert set(re.findall(r"wgmma\.mma_async\S*\.m\d+n\d+(k\d+)", as_prompt.ptx)) == {"k16"}
    assert "mma.sync" not in as_prompt.ptx
    check(as_prompt)
    for launch in decodes:
        compiled = compile_for_sm90(with_pdl(launch), tmp_path)
        assert set(re.findall(r"mma\.sync\S*\.(m\d+n\d+k\d+)", compiled.ptx)) == {"m16n8k16"}
        check(compiled)


def fp8_cache(num_kv_heads, head_dim):
    elements = torch.zeros(4, 16, num_kv_heads, head_dim).to(torch.float8_e4m3fn)
    exponents = torch.zeros(4, head_dim * num_kv_heads * 16, dtype=torch.uint8)[:, : 16 * num_kv_heads]
    return Fp8Cache(elements, exponents.unflatten(1, (16, num_kv_heads)))


@pytest.mark.parametrize(("num_seqs", "head_dim"), spread([(1, 128), (192, 64)], 1))
def test_decode_of_an_fp8_cache(num_seqs, head_dim, monkeypatch, tmp_path):
    """No conversion goes by the instructions that do a few numbers a clock, and elements come in pairs, not one by
    one, as exponents may."""
    recorder = LaunchRecorder(decode._paged_attention_decode_kernel)
    monkeypatch.setattr(decode, "_paged_attention_decode_kernel", recorder)
    monkeypatch.setattr(split_kv, "_split_items_kernel", LaunchRecorder(split_kv._split_items_kernel))
    query, cache = torch.zeros(num_seqs, 32, head_dim, dtype=torch.bfloat16), fp8_cache(8, head_dim)
    batch = decode.decode_batch(int32(0).expand(num_seqs, 1), int32(*[16] * num_seqs), 16)
    decode.paged_attention_decode_triton(query, cache, cache, batch, 0.1, torch.empty_like(query))
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    assert "mma.sync" in compiled.ptx and "cvt.rn.f16x2.e4m3x2" not in compiled.ptx
    assert len(re.findall(r"ld\.shared\S*8 ", compiled.ptx)) <= 8
    check(compiled)


def test_prefill_of_an_fp8_cache(monkeypatch, tmp_path):
    num_tokens, head_dim = 128, 128
    recorder = LaunchRecorder(prefill._paged_attention_prefill_kernel)
    monkeypatch.setattr(prefill, "_paged_attention_prefill_kernel", recorder)
    query, cache = torch.zeros(num_tokens, 32, head_dim, dtype=torch.bfloat16), fp8_cache(8, head_dim)
    batch = prefill.prefill_batch(int32(0)[None], int32(0, num_tokens), int32(num_tokens), num_tokens, 16)
    prefill.paged_attention_prefill_triton(query, cache, cache, batch, 0.1, torch.empty_like(query))
    compiled = compile_for_sm90(recorder.launches[0], tmp_path)
    assert "wgmma.mma_async" in compiled.ptx and "cvt.rn.f16x2.e4m3x2" not in compiled.ptx
    check(compiled)


@pytest.mark.parametrize(
    ("num_rows", "num_features"), spread(itertools.product([16, 64], [4096, 6144, 28672, 128256]), 1)
)
def test_skinny_linear(num_rows, num_features, monkeypatch, tmp_path):
    recorder = LaunchRecorder(skinny._skinny_linear_kernel)
    monkeypatch.setattr(skinny, "_skinny_linear_kernel", recorder)
    x, weight = (torch.empty(n, 4096, dtype=torch.bfloat16) for n in (num_rows, num_features))
    skinny.skinny_linear_triton(x, weight, None, skinny.new_arrivals(num_features, x.device))
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    check(compiled)


@pytest.mark.parametrize(
    ("num_rows", "kind"), spread(itertools.product([16, 64, 256], ["fp8", "fp8 groups", "int4"]), 2)
)
def test_skinny_linear_of_quantized_weights(num_rows, kind, monkeypatch, tmp_path):
    """No conversion goes by the instructions that do a few numbers a clock."""
    recorder = LaunchRecorder(skinny._skinny_linear_kernel)
    monkeypatch.setattr(skinny, "_skinny_linear_kernel", recorder)
    weight, _ = random_weight(kind, 4096, 1024, torch.bfloat16, group=128)
    x = torch.empty(num_rows, 1024, dtype=torch.bfloat16)
    skinny.skinny_linear_triton(x, weight, None, skinny.new_arrivals(4096, x.device))
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    check(compiled)
    assert "cvt.rn.f16x2.e4m3x2" not in compiled.ptx and "cvt.rn.f32.u8" not in compiled.ptx


@pytest.mark.parametrize("kind", spread(["int4", "fp8", "fp8 groups"], 2))
def test_products_in_registers_lie_as_the_matrix_unit_wants_them(kind, monkeypatch, tmp_path):
    """And nothing goes through shared memory or is spilled, in a plain product as behind a norm."""
    monkeypatch.setattr(skinny, "_skinny_linear_kernel", LaunchRecorder(skinny._skinny_linear_kernel))
    monkeypatch.setattr(behind, "_norm_linear_kernel", LaunchRecorder(behind._norm_linear_kernel))
    weight, _ = random_weight(kind, 4096, 1024, torch.bfloat16, group=128)
    x, arrivals = torch.zeros(1, 1024, dtype=torch.bfloat16), skinny.new_arrivals(4096, torch.device("cpu"))
    config = skinny.SkinnyConfig(128, 256 if weight.is_int4 else 128, 4, 1, 4, warp_tiles=2)
    skinny.skinny_linear_triton(x, weight, None, arrivals, config)
    normed = before.DeferredNorm(x, torch.empty(128, 8), 1e-5)
    behind.norm_linear_triton(normed, weight, None, arrivals, True, config)
    for launch in (*skinny._skinny_linear_kernel.launches, *behind._norm_linear_kernel.launches):
        (layout,) = layouts_of_assembly(with_pdl(launch))
        assert "sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]" in layout
        compiled = compile_for_sm90(with_pdl(launch), tmp_path)
        assert "mma.sync" in compiled.ptx and "cp.async" not in compiled.ptx and compiled.spills_in_loops == 0


@pytest.mark.parametrize(("num_rows", "num_features"), spread([(256, 4096), (16, 4096), (64, 4096), (64, 28672)], 1))
def test_fp8_linear_multiplies_fp8(num_rows, num_features, monkeypatch, tmp_path):
    recorder = LaunchRecorder(fp8_linear._fp8_linear_kernel)
    monkeypatch.setattr(fp8_linear, "_fp8_linear_kernel", recorder)
    weight, _ = random_weight("fp8", num_features, 1024, torch.bfloat16)
    x, scales = torch.zeros(num_rows, 1024).to(torch.float8_e4m3fn), torch.ones(num_rows, 1)
    fp8_linear.fp8_linear_triton(x, scales, weight, None, skinny.new_arrivals(num_features, x.device))
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    check(compiled)
    assert re.search(r"wgmma\.mma_async\S*e4m3\.e4m3", compiled.ptx)


def test_gated_linear_copies_by_tiles_and_leaves_room_for_a_second_program(monkeypatch, tmp_path):
    recorder = LaunchRecorder(gated._gated_linear_kernel)
    monkeypatch.setattr(gated, "_gated_linear_kernel", recorder)
    x, weight = (torch.empty(n, 4096, dtype=torch.bfloat16) for n in (128, 28672))
    gated.gated_linear_triton(x, weight)
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    assert "wgmma.mma_async" in compiled.ptx and "cp.async.bulk.tensor" in compiled.ptx
    assert compiled.spills_in_loops == 0
    assert 2 * compiled.shared_bytes <= SHARED_MEMORY_BYTES


@pytest.mark.parametrize(
    ("num_rows", "shape"), spread(itertools.product([40, 65, 256, 8192], [(28672, 4096), (4096, 14336)]), 1)
)
def test_ordered_linear(num_rows, shape, monkeypatch, tmp_path):
    """Its sums stay in registers, and it multiplies by one instruction, of 64 of one side and 16 inputs. One row of few
    features goes by another one of 16 inputs, which has its bits, and 40 by tiles."""
    for module, name in ((ordered, "_ordered_linear_kernel"), (skinny, "_skinny_linear_kernel")):
        monkeypatch.setattr(module, name, LaunchRecorder(getattr(module, name)))
    num_features, size = shape
    weight = torch.empty(num_features, size, dtype=torch.bfloat16)
    for rows in (num_rows, 1):
        x = torch.empty(rows, size, dtype=torch.bfloat16)
        ordered.ordered_linear_triton(x, weight, None, skinny.new_arrivals(num_features, x.device))
    many, few = ordered._ordered_linear_kernel.launches, skinny._skinny_linear_kernel.launches
    for place, launch in enumerate((*many, *few)):
        compiled = compile_for_sm90(with_pdl(launch), tmp_path)
        is_narrow = place >= len(many) and num_features <= 4608
        products = set(re.findall(r"mma[._]a?sync\S*\.(m\d+)n\d+(k\d+)", compiled.ptx))
        assert products == {("m16" if is_narrow else "m64", "k16")} and compiled.spills_in_loops == 0
        assert compiled.shared_bytes <= SHARED_MEMORY_BYTES
    assert all("cp.async.bulk.tensor" in compile_for_sm90(with_pdl(launch), tmp_path).ptx for launch in many)
    assert len(many) == (num_rows > 64 or num_features <= 4608)


@pytest.mark.parametrize("num_rows", spread([256, 8192], 1))
def test_what_is_fused_with_ordered_products(num_rows, monkeypatch, tmp_path):
    """Residual add and norm, then the next product with its gate: nothing is spilled where products are added."""
    recorder = LaunchRecorder(ordered._ordered_linear_kernel)
    monkeypatch.setattr(ordered, "_ordered_linear_kernel", recorder)
    shapes = (num_rows, 14336), (4096, 14336), (28672, 4096), (num_rows, 4096)
    x, weight, gate_up, residual = (torch.empty(*shape, dtype=torch.bfloat16) for shape in shapes)
    arrivals = skinny.new_arrivals(28672, x.device)
    normed, _ = ordered.ordered_add_norm_triton(x, weight, None, residual, residual[0], 1e-5, arrivals)
    ordered.ordered_linear_triton(normed, gate_up, None, arrivals, gated=True)
    assert len(recorder.launches) == 2
    for launch in recorder.launches:
        compiled = compile_for_sm90(with_pdl(launch), tmp_path)
        assert compiled.spills_in_loops == 0 and compiled.shared_bytes <= SHARED_MEMORY_BYTES


@pytest.mark.parametrize(("num_rows", "shape"), spread(itertools.product([64, 16], [(4096, 14336), (1024, 3072)]), 1))
def test_linear_add_norm(num_rows, shape, monkeypatch, tmp_path):
    num_features, size = shape
    recorder = LaunchRecorder(before._linear_add_norm_kernel)
    monkeypatch.setattr(before, "_linear_add_norm_kernel", recorder)
    shapes = (num_rows, size), (num_features, size), (num_rows, num_features)
    x, weight, residual = (torch.empty(*shape, dtype=torch.bfloat16) for shape in shapes)
    arrivals = skinny.new_arrivals(num_features, x.device)
    before.linear_add_norm_triton(x, weight, None, residual, residual[0], 1e-5, arrivals)
    check(compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path))


@pytest.mark.parametrize(("num_rows", "shape"), spread(itertools.product([64, 16], [(28672, True), (6144, False)]), 1))
def test_norm_linear(num_rows, shape, monkeypatch, tmp_path):
    num_features, gated = shape
    recorder = LaunchRecorder(behind._norm_linear_kernel)
    monkeypatch.setattr(behind, "_norm_linear_kernel", recorder)
    x, weight = (torch.empty(n, 4096, dtype=torch.bfloat16) for n in (num_rows, num_features))
    normed = before.DeferredNorm(x, torch.empty(128, num_rows), 1e-5)
    behind.norm_linear_triton(normed, weight, None, skinny.new_arrivals(num_features, x.device), gated)
    compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
    check(compiled)
    # What its end needs is on its way while the product runs.
    assert compiled.ptx.index("ld.global") < compiled.ptx.index("cp.async.cg.shared.global")


SHRUNK_LOADS = 64 * 16 // 128 * 2 * 5
"""Of what the shrink has left, a thread's of two parts, first ranks and those behind them in four strips: by the rank's
mask one by one."""


def lora_launches(num_tokens, size, out_features, monkeypatch):
    """The shrink's, the expand's, and that of gate and up, for 32 slots of rank 64 at the most."""
    recorders = []
    for module, name in ((shrink, "shrink"), (expand, "expand"), (gated_expand, "gated_expand")):
        recorders.append(LaunchRecorder(getattr(module, f"_lora_{name}_kernel")))
        monkeypatch.setattr(module, f"_lora_{name}_kernel", recorders[-1])
    tables = LoraCase(size, out_features, 64, torch.bfloat16).tables(33, alignment=8)
    x, y = (torch.empty(num_tokens, n, dtype=torch.bfloat16) for n in (size, sum(out_features)))
    slots = token_slots([0] * num_tokens, num_adapters=32)
    shrunk = shrink.lora_shrink_triton(x, slots, tables)
    expand.lora_expand_triton(shrunk, slots, tables, y)
    if len(out_features) == 2:
        gated_expand.lora_gated_expand_triton(shrunk, slots, tables, y)
    return [with_pdl(launch) for recorder in recorders for launch in recorder.launches[:1]]


LORA_SHAPES = [(4096, (4096, 1024, 1024)), (14336, (4096,)), (4096, (14336, 14336))]


@pytest.mark.parametrize(("num_tokens", "shape"), spread(itertools.product([64, 2048], LORA_SHAPES), 1))
def test_lora(num_tokens, shape, monkeypatch, tmp_path):
    """Weights of known alignment are read by 16 bytes at once, the batch's slots before the kernel before has ended."""
    size, out_features = shape
    launches = lora_launches(num_tokens, size, out_features, monkeypatch)
    compiled_ones = [compile_for_sm90(launch, tmp_path) for launch in launches]
    check(compiled_ones[0])
    for launch, compiled in zip(launches, compiled_ones, strict=True):
        assert compiled.spills_in_loops == 0
        loads = [line for line in compiled.ptx.splitlines() if "ld.global" in line]
        assert sum(".b16" in line for line in loads) <= SHRUNK_LOADS
        assert compiled.ptx.index("ld.global") < compiled.ptx.index("griddepcontrol.wait")
        assert compiled.ptx.index("griddepcontrol.wait") < compiled.ptx.index("st.global")
        assert compiled.registers * 32 * launch.options["num_warps"] <= REGISTERS


def of_experts(num_tokens, num_features, size, form, group=None):
    """(weight, blocks, config) as of 128 experts, 8 of a token; here are 2, and each token has one."""
    config = grouped_config(num_tokens * 8, 128, form)
    config = usual_tile(config.block_m) if config.by_units else config  # tests/kernels/test_mxfp4_units.py has those
    values = torch.empty(2, num_features, size, dtype=torch.bfloat16 if form == PLAIN else torch.float8_e4m3fn)
    scales = None if form == PLAIN else torch.empty(2, num_features, size // (group or size))
    zeros = None
    if form == INT4:
        values, zeros = (torch.empty(2, num_features, n, dtype=torch.uint8) for n in (size // 2, size // group))
    if form == MXFP4:
        shapes = (2, num_features, size // 2), (2, num_features, size // 32)
        values, scales = (torch.empty(shape, dtype=torch.uint8) for shape in shapes)
        scales = pack_scales(scales)
    experts = torch.zeros(num_tokens, 1, dtype=torch.int32)
    blocks = expert_blocks.expert_blocks_reference(experts, 2, config.block_m)
    return ExpertWeight(values, scales, None, zeros), blocks, config


@pytest.mark.parametrize(
    ("num_tokens", "form", "group"),
    spread(
        [
            (1, PLAIN, None),
            (8192, PLAIN, None),
            (256, FP8, None),
            (1024, FP8, None),
            (256, FP8, 128),
            (1024, FP8, 128),
            (256, INT4, 128),
            (1024, INT4, 128),
            (256, MXFP4, None),
            (1024, MXFP4, None),
        ],
        2,
    ),
)
def test_experts(num_tokens, form, group, monkeypatch, tmp_path):
    for module, name in ((gate_up, "_experts_gate_up_kernel"), (down, "_experts_down_kernel")):
        monkeypatch.setattr(module, name, LaunchRecorder(getattr(module, name)))
    monkeypatch.setattr(down, "_sum_pairs_kernel", LaunchRecorder(down._sum_pairs_kernel))
    x, weights = torch.empty(num_tokens, 2048, dtype=torch.bfloat16), torch.empty(num_tokens, 1)
    weight, blocks, config = of_experts(num_tokens, 2 * 768, 2048, form, group)
    gated_up = gate_up.experts_gate_up_triton(x, weight, blocks, config, is_interleaved=form == MXFP4)
    weight, blocks, config = of_experts(num_tokens, 2048, 768, form, group)
    down.experts_down_triton(gated_up, weight, blocks, weights, config)
    assert "griddepcontrol.wait" in ptx_for_sm90(with_pdl(down._sum_pairs_kernel.launches[0]))
    for recorder in (gate_up._experts_gate_up_kernel, down._experts_down_kernel):
        compiled = compile_for_sm90(with_pdl(recorder.launches[0]), tmp_path)
        in_registers = config.warp_tiles > 0
        assert ("mma.sync" if in_registers else "wgmma.mma_async") in compiled.ptx
        check(compiled, in_registers=in_registers)


@pytest.mark.parametrize(("block_m", "warp_tiles", "k_warps"), spread([(8, 2, 4), (16, 2, 1), (32, 1, 2)], 1))
def test_mxfp4_in_registers_lies_as_the_matrix_unit_wants_it(block_m, warp_tiles, k_warps, monkeypatch, tmp_path):
    """And is loaded sixteen bytes at once, also where a row of the weight ends within a chunk; nothing is spilled."""
    for module, name in ((gate_up, "_experts_gate_up_kernel"), (down, "_experts_down_kernel")):
        monkeypatch.setattr(module, name, LaunchRecorder(getattr(module, name)))
    monkeypatch.setattr(down, "_sum_pairs_kernel", LaunchRecorder(down._sum_pairs_kernel))
    config = GroupedConfig(block_m, 64 * warp_tiles // k_warps, 128, 4, 1, warp_tiles, k_warps)
    blocks = expert_blocks.expert_blocks_reference(torch.zeros(8, 1, dtype=torch.int32), 2, block_m)
    x = torch.empty(8, 2880, dtype=torch.bfloat16)
    gate_up.experts_gate_up_triton(x, of_experts(8, 2 * 2880, 2880, MXFP4, None)[0], blocks, config)
    down.experts_down_triton(x, of_experts(8, 2880, 2880, MXFP4, None)[0], blocks, torch.empty(8, 1), config)
    for recorder in (gate_up._experts_gate_up_kernel, down._experts_down_kernel):
        launch = with_pdl(recorder.launches[0])
        (layout,) = layouts_of_assembly(launch)
        assert "sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]" in layout
        compiled = compile_for_sm90(launch, tmp_path)
        assert "mma.sync" in compiled.ptx and compiled.spills_in_loops == 0
        assert len(re.findall(r"ld\.global\S*\.v4", compiled.ptx)) >= 2 * warp_tiles + block_m // 2


def test_routes_and_blocks(monkeypatch):
    """They compile: sorting counts in shared memory, which the interpreter does not show."""
    for module, name in ((routing, "_route_to_experts_kernel"), (expert_blocks, "_expert_blocks_kernel")):
        monkeypatch.setattr(module, name, LaunchRecorder(getattr(module, name)))
    routing.route_to_experts_triton(torch.empty(64, 128, dtype=torch.bfloat16), 8, True)
    expert_blocks.expert_blocks_triton(torch.zeros(2048, 8, dtype=torch.int32), 128, 64)
    for recorder in (routing._route_to_experts_kernel, expert_blocks._expert_blocks_kernel):
        assert "griddepcontrol.wait" in ptx_for_sm90(with_pdl(recorder.launches[0]))


@pytest.mark.parametrize("block_shape", [(32, 2, 1, 8, 128), (30, 2, 1, 3, 64)])
def test_move_blocks_reads_and_writes_sixteen_bytes_at_once(block_shape, monkeypatch):
    recorder = LaunchRecorder(move._move_blocks_kernel)
    monkeypatch.setattr(move, "_move_blocks_kernel", recorder)
    device, host = (torch.empty(4, *block_shape, dtype=torch.bfloat16) for _ in range(2))
    move.move_blocks_triton(device, torch.arange(3), host, torch.arange(3))
    launch = recorder.launches[0]
    ptx = ptx_for_sm90(Launch(launch.kernel, launch.grid, launch.args, {"enable_fp_fusion": True, **launch.options}))
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx


@pytest.mark.parametrize("gradient_scale", spread([0.5, None], 1))
def test_cross_entropy_reads_sixteen_bytes_at_once_and_spills_nothing(gradient_scale, monkeypatch, tmp_path):
    logits, targets = torch.zeros(4, 128_256, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int64)
    recorder = LaunchRecorder(entropy._cross_entropy_kernel)
    monkeypatch.setattr(entropy, "_cross_entropy_kernel", recorder)
    entropy.cross_entropy_triton(logits, targets, gradient_scale)
    launch = recorder.launches[0]
    options = {"enable_fp_fusion": True, **launch.options}
    compiled = compile_for_sm90(Launch(launch.kernel, launch.grid, launch.args, options), tmp_path)
    assert "ld.global.v4" in compiled.ptx and compiled.spills_in_loops == 0
