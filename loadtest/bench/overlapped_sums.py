"""A layer's products and all-reduces on two or more GPUs of a host: all-reduces after the products (in turn), and
overlapped with them (service/layers/overlapped_sum.py); us per layer:

    python -m loadtest.bench.overlapped_sums [--ranks 2] [--rows 2048 4096 8192]

Llama-8B's shapes in bf16, without attention: qkv, output, sum and norm, gate_up, activation, down, sum and norm.
Overlapped for several launch configurations of the all-reduce: programs, warps per program, rows sent ahead before it
waits. Several layers in a CUDA graph; the median of several replays, of the slowest rank. The results are compared
first. Takes a minute, most of it compilation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.mail import MailConfig
from kernels.replay_timing import seconds_by_replay
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_linear import new_arrivals
from kernels.sum_ways import CAPACITY_BYTES, Way
from kernels.symmetric_memory import SymmetricMemory
from loadtest.bench.gpu_ranks import run_gpu_ranks
from loadtest.bench.products import SHAPES
from service.layers.group_parallel import GroupParallel
from service.layers.linear_method import KernelMethod, Normed
from service.layers.summed_method import SummedMethod
from service.layers.tensor_parallel import TensorParallel

CONFIGS = tuple(
    MailConfig(programs, num_warps, ahead, is_beside=True)
    for programs, num_warps in ((16, 16), (32, 16), (48, 16), (64, 8), (128, 8))
    for ahead in (1, 4)
)
SUMMED = "output", "down"
LAYERS = 4
_ROUNDS = 7
_EPS = 1e-5
_HIDDEN = 4096


class Layer:
    """A rank's part of one layer. weights: [out, in], by the names of SHAPES."""

    def __init__(self, parallel: TensorParallel, weights: dict[str, Tensor]) -> None:
        arrivals = new_arrivals(max(map(len, weights.values())), weights["qkv"].device)
        self.methods = {name: KernelMethod(weight, None, arrivals) for name, weight in weights.items()}
        self.summed = {name: SummedMethod(self.methods[name], parallel) for name in SUMMED}
        self.norm = torch.ones_like(weights["qkv"][0])

    def compute(self, normed: Normed, attended: Tensor, residual: Tensor) -> tuple[Normed, Tensor]:
        """attended: takes the place of attention's output, which is not computed from qkv here."""
        self.methods["qkv"].multiply(normed)
        normed, residual = self._added("output", attended, residual)
        return self._added("down", silu_and_mul(self.methods["gate_up"].multiply(normed)), residual)

    def _added(self, name: str, x: Tensor, residual: Tensor) -> tuple[Normed, Tensor]:
        added = self.summed[name].add_and_norm(x, residual, self.norm, _EPS, in_parts=True)
        assert added is not None
        return added


def part_of(name: str, num_ranks: int) -> tuple[int, int]:
    """[out, in] of a rank's part of this linear."""
    num_out, num_in = SHAPES[name]
    return (num_out, num_in // num_ranks) if name in SUMMED else (num_out // num_ranks, num_in)


def computed(layers: Sequence[Layer], x: Tensor, attended: Tensor) -> Tensor:
    """The residual stream after all layers."""
    normed: Normed = x
    residual = x.clone()
    for layer in layers:
        normed, residual = layer.compute(normed, attended, residual)
    layers[0].methods["qkv"].multiply(normed)  # stands for the next layer's qkv, which waits for the last sum
    return residual


def main() -> int:
    parser = argparse.ArgumentParser(description="us of a layer whose all-reduces run beside its products")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 4096, 8192])
    asked = parser.parse_args()
    return run_gpu_ranks(asked.ranks, _measure, asked.rows)


@torch.inference_mode()
def _measure(group: dist.ProcessGroup, rows: Sequence[int]) -> None:
    rank, num_ranks = group.rank(), group.size()
    device = torch.device("cuda", rank)
    memory = SymmetricMemory.of_group(group, CAPACITY_BYTES, device)
    torch.manual_seed(rank)
    weights = [_weights(num_ranks, device) for _ in range(LAYERS)]
    ways = {"in turn": GroupParallel(group, group, memory)}
    for config in CONFIGS:
        name = f"beside: {config.programs}, {config.num_warps}, {config.ahead}"
        beside = dict.fromkeys(Way, config)
        ways[name] = GroupParallel(group, group, memory, overlap_tokens=1, beside=beside)
    head = " | ".join(map(str, rows))
    _tell(rank, f"| us a layer; programs, warps, ahead | {head} |\n|" + "---|" * (len(rows) + 1))
    for name, parallel in ways.items():
        layers = [Layer(parallel, each) for each in weights]
        cells = [_microseconds(layers, [Layer(ways["in turn"], each) for each in weights], num) for num in rows]
        _tell(rank, f"| {name} | " + " | ".join(f"{each:.0f}" for each in cells) + " |")


def _weights(num_ranks: int, device: torch.device) -> dict[str, Tensor]:
    shapes = {name: part_of(name, num_ranks) for name in SHAPES}
    return {name: torch.randn(shape, device=device).bfloat16() / shape[1] ** 0.5 for name, shape in shapes.items()}


def _microseconds(layers: Sequence[Layer], in_turn: Sequence[Layer], num_rows: int) -> float:
    """us per layer, of the slowest rank."""
    same = torch.Generator("cuda").manual_seed(num_rows)
    x = torch.randn(num_rows, _HIDDEN, generator=same, device="cuda").bfloat16()
    attended = torch.randn(num_rows, layers[0].methods["output"].weight.shape[1], device="cuda").bfloat16()
    want = computed(in_turn, x, attended)
    for _ in range(3):
        torch.testing.assert_close(computed(layers, x, attended), want, atol=0.1, rtol=0.05)
    dist.barrier()
    seconds = seconds_by_replay([lambda: computed(layers, x, attended)], _ROUNDS)
    slowest = torch.tensor([seconds * 1e6 / LAYERS], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def _tell(rank: int, line: str) -> None:
    if rank == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
