"""What a sum over the GPUs of a host takes, and a gather of what draws exchange, 8 bytes a row: kernels of ours beside
NCCL, us a call in CUDA graphs.

    python -m loadtest.bench.all_reduce [--ranks 2] [--size 4096]

A process a GPU. Each way is captured 64 times in a row and replayed; the time is the least of several replays, the
slowest rank's. Some 40 s, most of it NCCL's start and compiling. Without NVLink's multicast.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from kernels.one_shot_all_gather import one_shot_all_gather
from kernels.one_shot_all_reduce import (
    MAX_NORMED_ROWS,
    one_shot_add_rms_norm,
    one_shot_all_reduce,
    one_shot_all_reduce_reference,
)
from kernels.rms_norm import add_rms_norm
from kernels.symmetric_memory import SymmetricMemory
from kernels.two_shot_all_reduce import two_shot_all_reduce

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
WAYS = ("nccl", "one-shot", "two-shot", "nccl + norm", "one-shot with norm", "nccl gather", "one-shot gather")
CALLS = 64
_ONE_SHOT_ROWS = 1024
_ATTEMPTS = 7


def main() -> int:
    parser = argparse.ArgumentParser(description="us of an all-reduce over this host's GPUs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", type=int, default=4096, help="of a row, in bf16")
    asked = parser.parse_args()
    if torch.cuda.device_count() < asked.ranks:
        parser.error(f"{asked.ranks} GPUs are needed, {torch.cuda.device_count()} are there")
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        arguments = asked.ranks, asked.size, str(Path(folder) / "meeting-point")
        ranks = [context.Process(target=_measure, args=(rank, *arguments)) for rank in range(asked.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


def _measure(rank: int, num_ranks: int, size: int, meeting_point: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.manual_seed(rank)
    store = FileStore(meeting_point, num_ranks)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=num_ranks, device_id=device)
    memory = SymmetricMemory.of_group(dist.group.WORLD, ROWS[-1] * size * 2, device)
    _tell(rank, f"| us, rows of {size} | " + " | ".join(WAYS) + " |\n|" + "---|" * (len(WAYS) + 1))
    for num_rows in ROWS:
        x = torch.randn(num_rows, size, device=device).bfloat16()
        _check(x, memory)
        launches = _launches(x, memory)
        times = {name: _slowest(_microseconds(launch)) for name, launch in launches.items()}
        cells = (f"{times[name]:.1f}" if name in times else "" for name in WAYS)
        _tell(rank, f"| {num_rows} | " + " | ".join(cells) + " |")
    dist.destroy_process_group()


def _launches(x: Tensor, memory: SymmetricMemory) -> Mapping[str, Callable[[], object]]:
    residual, weight, summed = torch.randn_like(x), torch.ones_like(x[0]), torch.zeros_like(x)
    pairs = torch.zeros(len(x), 2, dtype=torch.int32, device=x.device)
    gathered = pairs.new_empty(memory.size, *pairs.shape)

    def nccl_and_norm() -> None:
        dist.all_reduce(summed)
        add_rms_norm(summed, residual, weight, 1e-5)

    launches: dict[str, Callable[[], object]] = {
        "nccl": partial(dist.all_reduce, summed),
        "two-shot": partial(two_shot_all_reduce, x, memory),
        "nccl gather": partial(dist.all_gather_into_tensor, gathered, pairs),
        "one-shot gather": partial(one_shot_all_gather, pairs, memory),
    }
    if len(x) <= _ONE_SHOT_ROWS:
        launches["one-shot"] = partial(one_shot_all_reduce, x, memory)
    if len(x) <= MAX_NORMED_ROWS:
        launches["nccl + norm"] = nccl_and_norm
        launches["one-shot with norm"] = partial(one_shot_add_rms_norm, x, residual, weight, 1e-5, memory)
    return launches


def _check(x: Tensor, memory: SymmetricMemory) -> None:
    """What is timed is right."""
    parts = x.new_empty(memory.size, *x.shape)
    dist.all_gather_into_tensor(parts, x)
    want = one_shot_all_reduce_reference(parts)
    assert torch.equal(one_shot_all_reduce(x, memory), want), "one-shot"
    assert torch.equal(two_shot_all_reduce(x, memory), want), "two-shot"
    assert torch.equal(one_shot_all_gather(x, memory), parts), "one-shot gather"


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
