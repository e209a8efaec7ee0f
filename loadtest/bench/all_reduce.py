"""Latency of all-reduces over a host's GPUs, and of the gather with which draws are exchanged (8 bytes per row): our
kernels beside NCCL, in us per call, in CUDA graphs.

    python -m loadtest.bench.all_reduce [--ranks 2] [--size 4096]
    python -m loadtest.bench.all_reduce --sweep [--ranks 2] [--size 4096]

One process per GPU. Each variant is captured 64 times in a row and replayed. Its time is the minimum of several
replays, of the slowest rank. Takes about 40 s, most of it NCCL's start-up and compilation. Without NVLink multicast.
--sweep: all-reduces with a fused norm under several launch configurations: number of programs, warps per program, and
rows that a program sends ahead before it waits.

Results are checked before they are timed: a sum's bits, and that all ranks have the same normed rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.mail import MailConfig
from kernels.one_shot_all_gather import one_shot_all_gather
from kernels.one_shot_all_reduce import (
    one_shot_add_rms_norm,
    one_shot_add_rms_norm_reference,
    one_shot_all_reduce,
    one_shot_all_reduce_reference,
)
from kernels.rms_norm import add_rms_norm
from kernels.symmetric_memory import SymmetricMemory
from kernels.two_shot_all_reduce import two_shot_add_rms_norm, two_shot_all_reduce
from loadtest.bench.gpu_ranks import run_gpu_ranks

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
SWEPT_ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
SUMS = {"one-shot": one_shot_all_reduce, "two-shot": two_shot_all_reduce}
NORMED_SUMS = {"one-shot + norm": one_shot_add_rms_norm, "two-shot + norm": two_shot_add_rms_norm}
WAYS = ("nccl", *SUMS, "nccl + norm", *NORMED_SUMS, "nccl gather", "one-shot gather")
CONFIGS = {
    "one-shot + norm": (
        MailConfig(128, 16, 0),
        MailConfig(128, 16, 1),
        MailConfig(128, 16, 2),
        MailConfig(128, 8, 1),
        MailConfig(256, 8, 0),
        MailConfig(256, 8, 1),
        MailConfig(256, 8, 2),
    ),
    "two-shot + norm": (
        MailConfig(128, 16, 0),
        MailConfig(128, 16, 1),
        MailConfig(256, 8, 0),
        MailConfig(256, 8, 1),
        MailConfig(256, 4, 0),
    ),
}
CALLS = 64
_ATTEMPTS = 7


def main() -> int:
    parser = argparse.ArgumentParser(description="us of an all-reduce over this host's GPUs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", type=int, default=4096, help="elements per row, in bf16; default: 4096")
    parser.add_argument("--sweep", action="store_true", help="sums with norm under several launch configurations")
    asked = parser.parse_args()
    return run_gpu_ranks(asked.ranks, _measure, asked.size, asked.sweep)


def _measure(group: dist.ProcessGroup, size: int, is_sweep: bool) -> None:
    device = torch.device("cuda", group.rank())
    torch.manual_seed(group.rank())
    memory = SymmetricMemory.of_group(group, ROWS[-1] * size * 2, device)
    (_sweep if is_sweep else _compare)(memory, size, device)


def _compare(memory: SymmetricMemory, size: int, device: torch.device) -> None:
    _tell(memory.rank, f"| us, rows of {size} | " + " | ".join(WAYS) + " |\n|" + "---|" * (len(WAYS) + 1))
    for num_rows in ROWS:
        x = torch.randn(num_rows, size, device=device).bfloat16()
        launches = _sums(x, memory) | _normed_sums(x, memory) | _gathers(x, memory)
        times = {name: _slowest(_microseconds(launch)) for name, launch in launches.items()}
        _tell(memory.rank, f"| {num_rows} | " + " | ".join(f"{times[name]:.1f}" for name in WAYS) + " |")


def _sums(x: Tensor, memory: SymmetricMemory) -> dict[str, Callable[[], object]]:
    want = one_shot_all_reduce_reference(_gathered(x, memory))
    for name, function in SUMS.items():
        assert torch.equal(function(x, memory), want), name
    ours = {name: partial(function, x, memory) for name, function in SUMS.items()}
    return {"nccl": partial(dist.all_reduce, torch.zeros_like(x)), **ours}


def _normed_sums(x: Tensor, memory: SymmetricMemory) -> dict[str, Callable[[], object]]:
    weight, summed = torch.ones_like(x[0]), torch.zeros_like(x)
    residual = torch.zeros_like(x)

    def nccl_and_norm() -> None:
        dist.all_reduce(summed)
        add_rms_norm(summed, residual, weight, 1e-5)

    for name, function in NORMED_SUMS.items():
        _check_normed(name, function, x, memory)
    ours = {name: partial(function, x, residual, weight, 1e-5, memory) for name, function in NORMED_SUMS.items()}
    return {"nccl + norm": nccl_and_norm, **ours}


def _gathers(x: Tensor, memory: SymmetricMemory) -> dict[str, Callable[[], object]]:
    """Gathers of 8 bytes per row."""
    pairs = x.view(torch.int32)[:, :2].contiguous()
    gathered = pairs.new_empty(memory.size, *pairs.shape)
    assert torch.equal(one_shot_all_gather(pairs, memory), _gathered(pairs, memory)), "one-shot gather"
    nccl = partial(dist.all_gather_into_tensor, gathered, pairs)
    return {"nccl gather": nccl, "one-shot gather": partial(one_shot_all_gather, pairs, memory)}


def _check_normed(
    name: str, function: Callable[..., tuple[Tensor, Tensor]], x: Tensor, memory: SymmetricMemory
) -> None:
    same = torch.Generator(x.device).manual_seed(1)
    residual = torch.randn(x.shape, generator=same, device=x.device).to(x.dtype)
    weight = torch.randn(x.shape[1], generator=same, device=x.device).to(x.dtype)
    want_normed, want_sum = one_shot_add_rms_norm_reference(_gathered(x, memory), residual, weight, 1e-5)
    for _ in range(3):  # more than once, so that both halves of the symmetric memory are used
        normed, total = function(x, residual.clone(), weight, 1e-5, memory)
        assert torch.equal(total, want_sum), f"{name}: {len(x)} rows, sum"
        torch.testing.assert_close(normed, want_normed, atol=3e-2, rtol=3e-2)
        assert (_gathered(normed, memory) == normed).all(), f"{name}: {len(x)} rows, ranks differ"


def _gathered(x: Tensor, memory: SymmetricMemory) -> Tensor:
    parts = x.new_empty(memory.size, *x.shape)
    dist.all_gather_into_tensor(parts.view(-1), x.view(-1))
    return parts


def _sweep(memory: SymmetricMemory, size: int, device: torch.device) -> None:
    head = " | ".join(str(rows) for rows in SWEPT_ROWS)
    _tell(memory.rank, f"| us, rows of {size}; programs, warps, ahead | {head} |\n|" + "---|" * (len(SWEPT_ROWS) + 1))
    inputs = [torch.randn(rows, size, device=device).bfloat16() for rows in SWEPT_ROWS]
    for name, configs in CONFIGS.items():
        for config in configs:
            cells = [_swept(name, partial(NORMED_SUMS[name], config=config), x, memory) for x in inputs]
            given = f"{name}: {config.programs}, {config.num_warps}, {config.ahead}"
            _tell(memory.rank, f"| {given} | " + " | ".join(cells) + " |")


def _swept(name: str, function: Callable[..., tuple[Tensor, Tensor]], x: Tensor, memory: SymmetricMemory) -> str:
    _check_normed(name, function, x, memory)
    residual, weight = torch.zeros_like(x), torch.ones_like(x[0])
    return f"{_slowest(_microseconds(partial(function, x, residual, weight, 1e-5, memory))):.1f}"


def _microseconds(launch: Callable[[], object]) -> float:
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            launch()
    microseconds = list[float]()
    for _ in range(_ATTEMPTS):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        microseconds.append(float(begin.elapsed_time(end)) * 1e3 / CALLS)
    return min(microseconds)


def _slowest(microseconds: float) -> float:
    value = torch.tensor([microseconds], device="cuda")
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def _tell(rank: int, line: str) -> None:
    if rank == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
