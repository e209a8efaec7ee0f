from __future__ import annotations

import importlib.util
import math
import os
from itertools import pairwise

import pytest
import torch

from kernels import prefill_units as module
from kernels.attention_config import PrefillUnitsConfig
from kernels.paged_attention_prefill import paged_attention_prefill_reference, prefill_batch
from kernels.prefill_units import prefill_units_triton, takes
from tests.examples import spread
from tests.kernels.attention_lanes import BFLOAT16, FLOAT16, assert_close, put
from tests.kernels.lanes import GPU, Lane
from tests.kernels.paged_case import paged_case

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from tests.kernels.gluon_emulator import Emulated
    from tests.kernels.sm90 import CUOBJDUMP, LaunchRecorder, compile_for_sm90

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")

LARGE, SMALL = PrefillUnitsConfig(128, 2), PrefillUnitsConfig(64, 3)
CASES = {
    "a chunk and a short one": ([70, 33], [700, 150], (8, 2), 128, 16, BFLOAT16),
    "others in a group": ([5, 1, 20, 3], [60, 17, 20, 4], (7, 1), 64, 32, FLOAT16),
    "none of one": ([130, 0, 40], [513, 60, 41], (4, 4), 64, 16, BFLOAT16),
    "as long as tiles": ([256, 128], [256, 384], (2, 1), 128, 64, FLOAT16),
}
EMULATED = pytest.param(Lane("emulated"), id="emulated")


def row_starts(query_lens):
    return torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32)


def attend(query, keys, values, batch, scale, out, config, sinks=None):
    of_batch = batch.block_table, batch.rows, batch.query_starts, batch.context_lens, batch.max_query_len
    prefill_units_triton(query, keys, values, *of_batch, scale, out, sinks, config)


@pytest.fixture
def emulated(monkeypatch):
    """Has the kernel run on a CPU."""
    monkeypatch.setattr(module, "_prefill_units_kernel", Emulated(module, "_prefill_units_kernel", monkeypatch))


def attended(lane, case, query, query_lens, config, rows=None, sinks=None):
    """`query` and the returned tensors are on the CPU: what the kernel gives, and what is right."""
    there, block_size = put(case, lane), case.key_cache.shape[1]
    starts, longest = row_starts(query_lens), max(query_lens)
    out, want = torch.full_like(query, math.nan), torch.full(query.shape, math.nan)
    batch = prefill_batch(
        there.block_table,
        lane.put(starts),
        there.context_lens,
        longest,
        block_size,
        None if rows is None else rows.to(lane.device),
    )
    on_the_device = lane.put(out)
    attend(
        lane.put(query),
        there.key_cache,
        there.value_cache,
        batch,
        0.1,
        on_the_device,
        config,
        None if sinks is None else lane.put(sinks),
    )
    whole = prefill_batch(case.block_table, starts, case.context_lens, longest, block_size)
    caches = case.key_cache.float(), case.value_cache.float()
    paged_attention_prefill_reference(
        query.float(), *caches, whole, 0.1, want, sinks=None if sinks is None else sinks.float()
    )
    return on_the_device.cpu(), want


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("config", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES)
def test_places_phases_and_masks(case, config):
    """Of whom the device's warps would read, write and wait for; cells that nobody has written hold NaN."""
    check(EMULATED.values[0], case, config)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES)
def test_follows_the_formula(case, config, lane):
    check(lane, case, config)


def check(lane, name, config):
    query_lens, context_lens, (num_heads, num_kv_heads), head_dim, block_size, dtype = CASES[name]
    case = paged_case(context_lens, block_size, num_kv_heads, head_dim, dtype)
    query = torch.randn(sum(query_lens), num_heads, head_dim).to(dtype)
    got, want = attended(lane, case, query, query_lens, config)
    assert_close(got, want)


@pytest.mark.parametrize("lane", [EMULATED, GPU])
def test_sinks_take_their_share(lane, request):
    if lane.name == "emulated":
        request.getfixturevalue("emulated")
    case, query = paged_case([60, 190], 16, 2, 64, BFLOAT16), torch.randn(50, 6, 64).bfloat16()
    sinks = torch.tensor([3.0, -30.0, 1.5, 0.0, 5.0, 30.0]).bfloat16()
    got, want = attended(lane, case, query, [30, 20], LARGE, sinks=sinks)
    assert_close(got, want)


@pytest.mark.usefixtures("emulated")
def test_a_sequence_without_a_row_of_the_table_is_left_out():
    case = paged_case([60, 90], 16, 2, 64, BFLOAT16)
    query = torch.randn(50, 4, 64).bfloat16()
    got, want = attended(EMULATED.values[0], case, query, [30, 20], LARGE, torch.tensor([-1, 1]))
    assert got[:30].isnan().all()
    assert_close(got[30:], want[30:])


@pytest.mark.usefixtures("emulated")
def test_a_wait_that_nothing_ends_is_an_error(monkeypatch):
    """The emulator's own: without a consumer that frees them, slots run out."""
    monkeypatch.setattr("tests.kernels.gluon_emulator.LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(module, "_attend_item", lambda *_: None)
    with pytest.raises(AssertionError, match="deadlock"):
        check(EMULATED.values[0], "a chunk and a short one", LARGE)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [
        ([3000], [3000]),
        ([2048], [9000]),
        ([128] * 70, [128] * 70),
        ([1, 700, 2, 33, 1024] * 60, [900, 700, 4000, 33, 1500] * 60),
    ],
    ids=["whole", "chunk", "equal", "mixed"],
)
@pytest.mark.parametrize("config", [LARGE, SMALL], ids=["large", "small"])
def test_large_batches(query_lens, context_lens, config, lane):
    """Against the reference in fp32."""
    num_seqs, width = len(query_lens), -(-max(context_lens) // 16)
    storage = torch.empty(6000, 2, 16, 8, 128, dtype=BFLOAT16, device=lane.device).normal_()
    keys, values = storage[:, 0], storage[:, 1]
    table = torch.stack([torch.randperm(6000, device=lane.device)[:width] for _ in range(num_seqs)]).int()
    lens = torch.tensor(context_lens, dtype=torch.int32, device=lane.device)
    batch = prefill_batch(table, row_starts(query_lens).to(lane.device), lens, max(query_lens), 16)
    query = torch.randn(sum(query_lens), 32, 128, device=lane.device).bfloat16()
    got, want = torch.full_like(query, math.nan), torch.empty_like(query, dtype=torch.float32)
    assert takes(query, keys, values, config)
    attend(query, keys, values, batch, 128**-0.5, got, config)
    paged_attention_prefill_reference(query.float(), keys.float(), values.float(), batch, 128**-0.5, want)
    assert torch.isfinite(got).all()
    for start, stop in pairwise(row_starts(query_lens).tolist()):
        assert (got[start:stop].float() - want[start:stop]).norm() < 5e-3 * want[start:stop].norm()


@pytest.mark.parametrize("lane", [GPU])
def test_what_is_laid_out_for_it(lane):
    def is_taken(dtype=BFLOAT16, head_dim=128, block_size=16, heads=(8, 2)):
        storage = torch.zeros(4, 2, block_size, heads[1], head_dim, dtype=dtype, device=lane.device)
        query = torch.zeros(3, heads[0], head_dim, dtype=dtype, device=lane.device)
        return takes(query, storage[:, 0], storage[:, 1], LARGE)

    assert is_taken() and is_taken(FLOAT16, 64, 128)
    assert not is_taken(torch.float32) and not is_taken(head_dim=96) and not is_taken(block_size=1)
    assert not is_taken(heads=(129, 1)) and not is_taken(block_size=256)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize(("head_dim", "dtype"), spread([(128, BFLOAT16), (64, FLOAT16)], 1))
def test_softmax_is_computed_while_the_units_multiply(head_dim, dtype, monkeypatch, tmp_path):
    """ptxas has every product waited for where it does not see through. Each of two consumers waits for the first
    scores, for scores and sums of a masked tile and of another, and for the last sums; loops hold all they need in
    registers."""
    if not CUOBJDUMP.exists():
        pytest.skip("this Triton comes without NVIDIA's tools")
    recorder = LaunchRecorder(module._prefill_units_kernel)
    monkeypatch.setattr(module, "_prefill_units_kernel", recorder)
    storage = torch.zeros(4, 2, 16, 8, head_dim, dtype=dtype)
    lens, starts = torch.tensor([64], dtype=torch.int32), torch.tensor([0, 64], dtype=torch.int32)
    batch = prefill_batch(torch.zeros(1, 4, dtype=torch.int32), starts, lens, 64, 16)
    query = torch.zeros(64, 32, head_dim, dtype=dtype)
    attend(query, storage[:, 0], storage[:, 1], batch, 0.1, torch.empty_like(query), LARGE)
    compiled = compile_for_sm90(recorder.launches[0], tmp_path)
    assert "cp.async.bulk.tensor" in compiled.ptx and "wgmma.mma_async" in compiled.ptx
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.waits_for_units == 2 * 6
