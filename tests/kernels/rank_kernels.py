"""What two processes do with kernels that exchange: on two GPUs, or in Triton's interpreter over memory that they share
(a file). Without pytest, which they need not import."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels.one_shot_all_gather import one_shot_all_gather
from kernels.one_shot_all_reduce import one_shot_add_rms_norm, one_shot_all_reduce
from kernels.symmetric_memory import SymmetricMemory, mail_offset
from kernels.two_shot_all_reduce import two_shot_add_rms_norm, two_shot_all_reduce
from tests.kernels.quick_interpreter import make_quick

CAPACITY = 1 << 20
LAUNCHES = {"one": one_shot_all_reduce, "two": two_shot_all_reduce, "gather": one_shot_all_gather}
NORMED = {"one normed": one_shot_add_rms_norm, "two normed": two_shot_add_rms_norm}


def shared_memory(parallel, folder: Path, capacity: int = CAPACITY) -> SymmetricMemory:
    """Of the interpreter's lane."""
    make_quick(setattr)
    num_bytes = SymmetricMemory.num_bytes(parallel.size, capacity)
    files = [folder / f"rank-{rank}" for rank in range(parallel.size)]
    mapped = [torch.from_file(str(file), shared=True, size=num_bytes, dtype=torch.uint8) for file in files]
    parallel.least(0)  # all files are there
    addresses = [each.data_ptr() for each in mapped]
    return SymmetricMemory.at(addresses, parallel.rank, capacity, torch.device("cpu"), mapped)


def part(case: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(10 * case + rank)).to(dtype)


def residual_and_weight(case: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(case + 1000)
    return torch.randn(shape, generator=generator).to(dtype), torch.randn(shape[1:], generator=generator).to(dtype)


def summed(parallel, memory: SymmetricMemory, device: torch.device, cases) -> list:
    """Of each case (kind, shape, dtype) the result. One launch follows another without a pause."""
    results = []
    for number, (kind, shape, dtype) in enumerate(cases):
        x = part(number, parallel.rank, shape, dtype).to(device)
        if kind in NORMED:
            residual, weight = (each.to(device) for each in residual_and_weight(number, shape, dtype))
            results.append(NORMED[kind](x, residual, weight, 1e-5, memory))
        else:
            results.append(LAUNCHES[kind](x, memory))
    return [tuple(t.cpu() for t in each) if isinstance(each, tuple) else each.cpu() for each in results]


def interpreted(parallel, folder: Path, cases, capacity: int = CAPACITY):
    memory = shared_memory(parallel, folder, capacity)
    return summed(parallel, memory, torch.device("cpu"), cases), memory.steps.tolist()


def interpreted_of_little(parallel, folder: Path, cases):
    """Where two rows of plain sums have room in fp32."""
    return interpreted(parallel, folder, cases, 1 << 15)


def interpreted_values(parallel, folder: Path, values: list[torch.Tensor]):
    """What the ranks' values sum up to, either way, and what is left in the mail."""
    memory = shared_memory(parallel, folder)
    mine = values[parallel.rank]
    sums = [one_shot_all_reduce(mine, memory), two_shot_all_reduce(mine, memory)]
    parallel.least(0)  # all have ended
    return sums, memory.held[parallel.rank][mail_offset(parallel.size) :].clone()


def on_gpus(parallel, cases, num_replays: int):
    """The cases launch by launch, then in a CUDA graph that is replayed, then launch by launch again."""
    import torch.distributed as dist

    device = torch.device("cuda", parallel.rank)
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl", device_id=device)
    memory = SymmetricMemory.of_group(group, CAPACITY, device)
    first = summed(parallel, memory, device, cases)
    inputs = [part(number, parallel.rank, shape, dtype).to(device) for number, (_, shape, dtype) in enumerate(cases)]
    pairs = [(kind, x) for (kind, *_), x in zip(cases, inputs, strict=True) if kind in LAUNCHES]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [LAUNCHES[kind](x, memory) for kind, x in pairs]
    for _ in range(num_replays):
        graph.replay()
    torch.cuda.synchronize()
    replayed = [out.cpu() for out in outs]
    again = summed(parallel, memory, device, cases)
    dist.destroy_process_group(group)
    return first, replayed, again
