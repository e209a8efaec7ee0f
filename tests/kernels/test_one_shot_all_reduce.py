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
from tests.kernels.rank_kernels import CAPACITY, LAUNCHES, NORMED, interpreted, on_gpus, part, residual_and_weight
from tests.ranks import Ranks

SIZES = [(1,), (7, 3), (2049,), (64,), (33, 1000)]
EXACT = {torch.float32: 0.0, torch.bfloat16: 0.0}
INTERPRETED = {torch.float32: 0.0, torch.bfloat16: 2**-7}
"""Relative: the interpreter cuts to bf16 where a GPU rounds."""


def cases(seed: int, sizes, dtypes=(torch.float32, torch.bfloat16), kinds=("one", "two", "gather", "one normed")):
    """(kind, shape, dtype) in an order of no pattern: grids grow and shrink from launch to launch."""
    chance = random.Random(seed)
    made = [(kind, shape, dtype) for kind in kinds if kind in LAUNCHES for shape in sizes for dtype in dtypes]
    made = [(kind, (2, *shape) if kind == "gather" else shape, dtype) for kind, shape, dtype in made]
    normed = [kind for kind in kinds if kind in NORMED]
    made += [(kind, shape, dtype) for kind in normed for shape in ((1, 64), (5, 1000), (17, 256)) for dtype in dtypes]
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
    given = cases(4, [*SIZES, (256, 1000), (128, 2048)], kinds=(*LAUNCHES, *NORMED))
    sums = [each for each in given if each[0] in LAUNCHES]
    numbers = [number for number, each in enumerate(given) if each[0] in LAUNCHES]
    for first, replayed, again in ranks_of_gpus.run(on_gpus, given, 50):
        check(given, first, EXACT, size)
        check(given, again, EXACT, size)
        for number, (kind, shape, dtype), result in zip(numbers, sums, replayed, strict=True):
            parts = torch.stack([part(number, rank, shape, dtype) for rank in range(size)])
            assert torch.equal(result, parts if kind == "gather" else one_shot_all_reduce_reference(parts))


def launches_of_all_kinds(monkeypatch):
    from tests.kernels.sm90 import LaunchRecorder

    memory = SymmetricMemory.at([2**40, 2**41], 1, CAPACITY, torch.device("cpu"), None)
    x, weight = torch.zeros(8, 4096, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.bfloat16)
    for module, name, launch in (
        (one, "_one_shot_all_reduce_kernel", lambda: one.one_shot_all_reduce(x, memory)),
        (one, "_one_shot_add_rms_norm_kernel", lambda: one.one_shot_add_rms_norm(x, x, weight, 1e-5, memory)),
        (two, "_two_shot_all_reduce_kernel", lambda: two.two_shot_all_reduce(x, memory)),
        (gather, "_one_shot_all_gather_kernel", lambda: gather.one_shot_all_gather(x, memory)),
    ):
        recorder = LaunchRecorder(getattr(module, name))
        monkeypatch.setattr(module, name, recorder)
        launch()
        yield from recorder.launches


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_an_h200_would_run_them_they_read_wide_and_order_what_the_system_sees(monkeypatch):
    from tests.kernels.sm90 import compile_to_ptx

    launches = list(launches_of_all_kinds(monkeypatch))
    assert len(launches) == 4
    for launch in launches:
        ptx = compile_to_ptx(launch)
        assert "atom.global.sys.release.exch.b64" in ptx
        assert re.search(r"(ld|atom)\.global\.sys\.acquire", ptx)
        assert len(re.findall(r"ld\.global\.v4", ptx)) >= 3, "its own x, and that of both ranks"
        assert "multimem" not in ptx
