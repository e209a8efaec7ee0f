"""Kernels of several ranks that exchange, in processes: all in one sequence, since launches share the memory."""

from __future__ import annotations

import importlib.util
import os
import random
import re
from collections.abc import Iterator

import pytest
import torch

from kernels import one_shot_all_gather as gather
from kernels import one_shot_all_reduce as one
from kernels import two_shot_all_reduce as two
from kernels.one_shot_all_gather import one_shot_all_gather_reference
from kernels.one_shot_all_reduce import one_shot_add_rms_norm_reference, one_shot_all_reduce_reference
from kernels.symmetric_memory import MAX_PROGRAMS, SymmetricMemory
from tests.kernels.rank_kernels import LAUNCHES, NORMED, interpreted, on_gpus, part, residual_and_weight
from tests.ranks import Ranks

SIZES = [(1,), (7, 3), (2049,), (64,), (33, 1000)]
EXACT = {torch.float32: 0.0, torch.bfloat16: 0.0}
INTERPRETED = {torch.float32: 0.0, torch.bfloat16: 2**-7}
"""Relative: the interpreter cuts to bf16 where a GPU rounds."""


def cases(seed: int, sizes, dtypes=(torch.float32, torch.bfloat16)):
    """(kind, shape, dtype) in an order of no pattern: grids grow and shrink from launch to launch."""
    chance = random.Random(seed)
    made = [(kind, shape, dtype) for kind in ("one", "two") for shape in sizes for dtype in dtypes]
    made += [("gather", shape, torch.float32) for shape in sizes]
    made += [("gather", (2, *shape), torch.bfloat16) for shape in sizes]
    made += [(kind, shape, dtype) for kind in NORMED for shape in ((1, 64), (5, 1000), (17, 256)) for dtype in dtypes]
    chance.shuffle(made)
    return made


def check(given, results, rounding, size=2):
    """Sums are exact, but for how they are rounded."""
    for number, ((kind, shape, dtype), result) in enumerate(zip(given, results, strict=True)):
        parts = torch.stack([part(number, rank, shape, dtype) for rank in range(size)])
        if kind in NORMED:
            want = one_shot_add_rms_norm_reference(parts, *residual_and_weight(number, shape, dtype), 1e-5)
            tolerance = 4e-2 if dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(result[0], want[0], atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(result[1], want[1], atol=2 * rounding[dtype], rtol=2 * rounding[dtype])
        elif kind == "gather":
            assert torch.equal(result, one_shot_all_gather_reference(parts.unbind()))
        else:
            want = one_shot_all_reduce_reference(parts)
            torch.testing.assert_close(result, want, atol=0.0, rtol=rounding[dtype], msg=f"{number} {kind} {shape}")


def test_the_reference_sums_in_fp32_in_the_order_of_ranks():
    parts = torch.tensor([[1.0], [2**-8], [2**-8], [-1.0]]).bfloat16()
    assert one_shot_all_reduce_reference(parts).item() == 2**-7
    x, weight = torch.randn(2, 3, 8), torch.ones(8)
    normed, total = one_shot_add_rms_norm_reference(x, x[0], weight, 0.0)
    torch.testing.assert_close(total, 2 * x[0] + x[1])
    torch.testing.assert_close((normed**2).mean(-1), torch.ones(3))


@pytest.mark.interpret
def test_launches_one_behind_another_in_the_interpreter(two_ranks: Ranks, tmp_path):
    given = cases(3, SIZES)
    answers = two_ranks.run(interpreted, tmp_path, given)
    for results, steps in answers:
        check(given, results, INTERPRETED)
        for mine, others in zip(results, answers[0][0], strict=True):
            assert all(map(torch.equal, mine, others)), "the same bits on every rank"
        assert steps == [2 * len(given)] * MAX_PROGRAMS, "no program's count stays behind"


@pytest.fixture(params=[2, 4])
def ranks_of_gpus(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    ranks = Ranks(request.param)
    yield ranks
    ranks.stop()


@pytest.mark.gpu
def test_launches_and_replays_on_gpus(ranks_of_gpus: Ranks):
    size = ranks_of_gpus.size
    given = cases(4, [*SIZES, (256, 1000), (128, 2048)])
    sums = [each for each in given if each[0] in LAUNCHES]
    numbers = [number for number, each in enumerate(given) if each[0] in LAUNCHES]
    for first, replayed, again in ranks_of_gpus.run(on_gpus, given, 50):
        check(given, first, EXACT, size)
        check(given, again, EXACT, size)
        for number, (kind, shape, dtype), result in zip(numbers, sums, replayed, strict=True):
            parts = torch.stack([part(number, rank, shape, dtype) for rank in range(size)])
            assert torch.equal(result, parts if kind == "gather" else one_shot_all_reduce_reference(parts))


def launches_of_all_kinds(monkeypatch, size=2):
    from tests.kernels.sm90 import LaunchRecorder

    addresses = [2**40 + rank * 2**36 for rank in range(size)]
    memory = SymmetricMemory.at(addresses, 1, 1 << 25, torch.device("cpu"), None)
    x, weight = torch.zeros(600, 4096, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.bfloat16)
    recorders = []
    for module, name in (
        (one, "_one_shot_kernel"),
        (two, "_two_shot_kernel"),
        (gather, "_one_shot_all_gather_kernel"),
    ):
        recorders.append(LaunchRecorder(getattr(module, name)))
        monkeypatch.setattr(module, name, recorders[-1])
    one.one_shot_all_reduce(x, memory)
    one.one_shot_add_rms_norm(x, x, weight, 1e-5, memory)
    two.two_shot_all_reduce(x, memory)
    two.two_shot_add_rms_norm(x, x, weight, 1e-5, memory)
    gather.one_shot_all_gather(x[:64], memory)
    sums, gathers = [launch for each in recorders[:2] for launch in each.launches], recorders[2].launches
    assert len(sums) == 4 and len(gathers) == 1
    return sums, gathers


def compiled(test):
    """Marks it: compiles without a GPU."""
    for mark in (
        pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
        pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing"),
        pytest.mark.filterwarnings("ignore::UserWarning"),
    ):
        test = mark(test)
    return test


@compiled
@pytest.mark.parametrize("size", [2, 4])
def test_as_an_h200_would_run_them_sums_move_sixteen_bytes_at_once_without_a_fence(monkeypatch, tmp_path, size):
    from tests.kernels.sm90 import compile_for_sm90

    sums, _ = launches_of_all_kinds(monkeypatch, size)
    for launch in sums if size == 2 else sums[1::2]:  # which go on with the norm
        compiled = compile_for_sm90(launch, tmp_path)
        assert len(re.findall(r"ld\.volatile\.global\.v4", compiled.ptx)) >= size, "what all ranks have"
        assert not re.search(r"ld\.volatile\.global\.[bus]", compiled.ptx), "whoever waits reads wide, too"
        assert not re.search(r"atom|fence|membar|multimem", compiled.ptx)
        assert compiled.spills_in_loops < 8, "hardly any"
        beside = -(-launch.grid[0] // 128)
        assert compiled.registers * 32 * launch.options["num_warps"] * beside <= 65536, "all programs run at once"


@compiled
def test_as_an_h200_would_run_it_a_gather_reads_wide_and_orders_what_the_system_sees(monkeypatch):
    from tests.kernels.sm90 import compile_to_ptx

    for launch in launches_of_all_kinds(monkeypatch)[1]:
        ptx = compile_to_ptx(launch)
        assert "atom.global.sys.release.exch.b64" in ptx
        assert re.search(r"(ld|atom)\.global\.sys\.acquire", ptx)
        assert len(re.findall(r"ld\.global\.v4", ptx)) >= 3, "its own x, and that of both ranks"
        assert "multimem" not in ptx
