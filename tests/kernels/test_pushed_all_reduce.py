"""tests/kernels/test_one_shot_all_reduce.py launches these on GPUs, among others; here, what they are made of."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

import pytest
import torch

from kernels import pushed_all_reduce
from kernels.pushed_all_reduce import ONE_SHOT, TWO_SHOT, PushConfig, pushes_one_shot, pushes_two_shot
from kernels.symmetric_memory import SymmetricMemory
from tests.kernels.rank_kernels import CAPACITY, interpreted
from tests.kernels.test_one_shot_all_reduce import INTERPRETED, cases, check
from tests.ranks import Ranks

PUSHED = ("pushed one", "pushed two", "pushed one normed", "pushed two normed")


def memory_of(size: int, capacity: int = CAPACITY) -> SymmetricMemory:
    addresses = [2**40 + rank * 2**36 for rank in range(size)]
    return SymmetricMemory.at(addresses, 1, capacity, torch.device("cpu"), None)


@pytest.mark.interpret
def test_launches_one_behind_another_in_the_interpreter(two_ranks: Ranks, tmp_path):
    given = cases(5, [(1,), (2049,), (9, 1000)], kinds=("one", *PUSHED))
    answers = two_ranks.run(interpreted, tmp_path, given)
    for results, _ in answers:
        check(given, results, INTERPRETED)
    for mine, others in zip(answers[1][0], answers[0][0], strict=True):
        assert all(map(torch.equal, mine, others)), "the same bits on every rank"


@pytest.fixture
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.mark.load
@pytest.mark.interpret
def test_four_ranks_have_rows_for_all_or_for_some(four_ranks: Ranks, tmp_path):
    shapes = [("pushed two normed", (rows, 64), torch.float32) for rows in (1, 6, 9)]
    given = [*shapes, ("pushed one normed", (3, 64), torch.float32), ("pushed two", (20000,), torch.float32)]
    for results, _ in four_ranks.run(interpreted, tmp_path, given):
        check(given, results, INTERPRETED, 4)


def test_what_has_no_room_is_refused():
    x = torch.zeros(64, 4096, dtype=torch.bfloat16)
    assert pushes_one_shot(x, memory_of(3, x.nbytes * 2)) and not pushes_one_shot(x, memory_of(4, x.nbytes * 2))
    assert pushes_two_shot(x, memory_of(4, x.nbytes * 2)) and not pushes_two_shot(x, memory_of(4, x.nbytes))


def launch_of(name: str, size: int, config: PushConfig, monkeypatch):
    from tests.kernels.sm90 import LaunchRecorder

    recorder = LaunchRecorder(getattr(pushed_all_reduce, name))
    monkeypatch.setattr(pushed_all_reduce, name, recorder)
    x, weight = torch.zeros(600, 4096, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.bfloat16)
    launcher = "pushed_two_shot_add_rms_norm" if "two" in name else "pushed_one_shot_add_rms_norm"
    getattr(pushed_all_reduce, launcher)(x, x, weight, 1e-5, memory_of(size, 1 << 25), config)
    (launch,) = recorder.launches
    return launch


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kernel", "config"), [("_pushed_one_shot_kernel", ONE_SHOT), ("_pushed_two_shot_kernel", TWO_SHOT)]
)
def test_as_an_h200_would_run_them_they_move_sixteen_bytes_and_have_no_fence(kernel, config, monkeypatch, tmp_path):
    from tests.kernels.sm90 import compile_for_sm90

    compiled = compile_for_sm90(launch_of(kernel, 2, config, monkeypatch), tmp_path)
    assert re.search(r"ld\.volatile\.global\.v4", compiled.ptx)
    assert not re.search(r"ld\.volatile\.global\.(b|u|s)", compiled.ptx), "whoever waits reads wide, too"
    assert not re.search(r"atom|fence|membar|multimem", compiled.ptx)
    assert compiled.spills_in_loops == 0
    assert compiled.registers * 32 * config.num_warps * -(-config.programs // 128) <= 65536, "all programs run at once"
