"""`python -m loadtest.bench.expert_layers`: one mixture-of-experts layer, beside torch's grouped GEMM and the device's
limit. Takes less than a minute on one GPU.

The limit: the bytes of all experts that got rows, or the FLOPs of all (row, expert) pairs, whichever takes longer. The
measured time also includes routing, sorting, activation and the final sum. torch's version, for bf16 weights: sort,
gather, `_grouped_mm`, SiLU, `_grouped_mm`, weigh, `index_add_`.

`--sweep` times many configurations of both products, best first: the table of kernels/grouped_product.py comes from it.
It takes minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.expert_blocks import expert_blocks
from kernels.experts_down import experts_down
from kernels.experts_gate_up import experts_gate_up
from kernels.grouped_product import MXFP4, ExpertWeight, GroupedConfig
from kernels.mxfp4_product import CHUNK
from kernels.optional_triton import triton
from kernels.route_to_experts import route_to_experts
from loadtest.bench.device_limits import DeviceLimits, measure_device
from loadtest.bench.launch_timing import bench_device, seconds_of_launch
from loadtest.bench.report import print_json, print_table
from loadtest.model_shapes import GPT_OSS_20B, QWEN3_30B_A3B, read_shape
from service.layers.experts_config import ExpertsConfig
from service.layers.mixture_of_experts import USUAL_NAMES, ExpertNames, MixtureOfExperts
from service.models.model_config import parse_model_config

ROWS = (1, 16, 64, 256, 2048)
CPU_ROWS = (1, 16)
SHAPES = (QWEN3_30B_A3B, GPT_OSS_20B)
DTYPE = torch.bfloat16
_SHARED_BYTES = 220 * 1024


@dataclass(frozen=True, slots=True)
class ExpertResult:
    """Seconds of one layer. limit_s: by bytes or operations. torch_s: with torch's grouped GEMM; None: it has none."""

    shape: str
    num_rows: int
    seconds: float
    limit_s: float
    torch_s: float | None


class ExpertWork:
    """Rows for a layer with random weights. A random router's logits are about as even as those of a trained one."""

    def __init__(self, layer: MixtureOfExperts, num_rows: int) -> None:
        self.layer = layer
        self.x = torch.randn(num_rows, layer.router.in_features, device=bench_device()).to(DTYPE)

    @torch.inference_mode()
    def routes(self) -> tuple[Tensor, Tensor]:
        return route_to_experts(self.layer.router(self.x), self.layer.config.top_k, True)

    def limit_s(self, limits: DeviceLimits) -> float:
        config, weights = self.layer.config, [*self.layer.named_parameters(), *self.layer.named_buffers()]
        num_used = len(self.routes()[0].unique())
        num_bytes = (
            num_used * sum(w.nbytes for name, w in weights if "router" not in name) / config.num_experts
            + 2 * self.x.nbytes
        )
        num_pairs = self.x.shape[0] * config.top_k
        flops = num_pairs * 6 * config.intermediate_size * self.x.shape[1]
        return max(num_bytes / limits.bytes_per_s, flops / limits.flops_per_s)

    def compute_by_torch(self) -> Tensor:
        """As transformers computes it with `experts_implementation="grouped_mm"`."""
        layer, config = self.layer, self.layer.config
        weights, experts = layer.router(self.x).float().softmax(-1).topk(config.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        bounds = torch.searchsorted(experts.flatten()[order], torch.arange(config.num_experts, device=order.device) + 1)
        tokens, ends = order // config.top_k, bounds.int()
        gate_up = torch._grouped_mm(self.x[tokens], layer.gate_up.transpose(1, 2), offs=ends)
        gate, up = gate_up.chunk(2, dim=-1)
        pairs = torch._grouped_mm(F.silu(gate) * up, layer.down.transpose(1, 2), offs=ends)
        weighted = (pairs * weights.flatten()[order, None]).to(DTYPE)
        return torch.zeros_like(self.x).index_add_(0, tokens, weighted)


def make_layer(
    hidden_size: int, config: ExpertsConfig, names: ExpertNames, *, is_fp8: bool = False
) -> MixtureOfExperts:
    with torch.device(bench_device()):
        layer = MixtureOfExperts(hidden_size, config, names)
    if is_fp8:
        layer.store_fp8()
    for name, buffer in layer.named_buffers():
        if name.endswith("_scales"):
            buffer.fill_(2e-4)
        else:
            buffer.copy_(torch.randn(buffer.shape, device=buffer.device) * 100)
    for name, parameter in layer.named_parameters():
        if name.endswith("_scales"):
            parameter.fill_(120)
        elif parameter.is_floating_point():
            parameter.data = torch.empty(parameter.shape, dtype=DTYPE, device=bench_device()).normal_(0, 0.02)
        else:
            parameter.random_(0, 256)
    if config.is_mxfp4:
        layer.finish_reading(DTYPE)
    if bench_device().type == "cpu":
        layer.fit_cpu(DTYPE)
    return layer


def layer_of(shape: str, *, is_fp8: bool = False) -> MixtureOfExperts:
    config = parse_model_config(read_shape(shape))
    assert config.experts is not None
    names = ExpertNames(router="mlp.router", is_stacked=True) if config.experts.has_bias else USUAL_NAMES
    return make_layer(config.hidden_size, config.experts, names, is_fp8=is_fp8)


@torch.inference_mode()
def measure(name: str, layer: MixtureOfExperts, num_rows: int, limits: DeviceLimits) -> ExpertResult:
    works = [ExpertWork(layer, num_rows) for _ in range(4)]  # each uses other experts, so that L2 does not have them
    seconds = seconds_of_launch([partial(work.layer, work.x) for work in works])
    held = layer.weights[0]
    is_plain = not layer.names.is_stacked and isinstance(held, ExpertWeight) and held.scales is None
    by_torch = seconds_of_launch([work.compute_by_torch for work in works]) if is_plain else None
    limit_s = sum(work.limit_s(limits) for work in works) / len(works)
    return ExpertResult(name, num_rows, seconds, limit_s, by_torch)


def print_results(results: Sequence[ExpertResult]) -> None:
    rows = [
        [
            result.shape,
            str(result.num_rows),
            f"{result.seconds * 1e6:.1f}",
            f"{result.limit_s * 1e6:.1f}",
            f"{100 * result.limit_s / result.seconds:.0f} %",
            "" if result.torch_s is None else f"{result.torch_s * 1e6:.1f}",
        ]
        for result in results
    ]
    print_table(["mixture of experts", "rows", "us", "limit", "of the limit", "torch's"], rows)


def configs() -> list[GroupedConfig]:
    """Configurations whose stages fit in a multiprocessor's shared memory."""
    sizes = product((16, 32, 64, 128), (32, 64, 128, 256), (64, 128, 256), (4, 8), (2, 3, 4, 5))
    made = [GroupedConfig(*each) for each in sizes]
    return [
        c
        for c in made
        if (c.block_m + c.block_n) * c.block_k * DTYPE.itemsize * c.num_stages <= _SHARED_BYTES
        and 1024 <= c.block_m * c.block_n <= 16384 * (c.num_warps // 4)
        and (c.num_warps == 4 or c.block_m * c.block_n >= 8192)
    ]


def register_configs() -> list[GroupedConfig]:
    """Configurations of kernels/mxfp4_product.py."""
    made = []
    for block_m, warps, tiles, k_warps, turn in product((8, 16, 32), (1, 2, 4), (1, 2), (1, 2, 4, 8), (1, 2)):
        if warps * k_warps in (2, 4, 8) and warps * tiles > 1 and turn * block_m <= 32:
            for num_stages in (1, 2) if k_warps < 8 else (1,):
                size = 16 * warps * tiles, turn * CHUNK, warps * k_warps, num_stages
                made.append(GroupedConfig(block_m, *size, tiles, k_warps))
    return made


def units_configs() -> list[GroupedConfig]:
    """Configurations of kernels/mxfp4_units.py that fit in shared memory."""
    made = []
    for block_m, (block_n, num_warps), num_stages in product((16, 32, 64), ((64, 4), (128, 4), (128, 8)), (3, 4, 6)):
        if num_stages * (256 * block_m + 64 * block_n) <= _SHARED_BYTES:
            made.append(GroupedConfig(block_m, block_n, CHUNK, num_warps, num_stages, by_units=True))
    return made


@torch.inference_mode()
def sweep(name: str, layer: MixtureOfExperts, num_rows: int) -> None:
    work = ExpertWork(layer, num_rows)
    experts, routing = work.routes()
    gate_up, down = layer.weights
    is_interleaved, clamp = layer.names.is_stacked, layer.clamp
    average = num_rows * layer.config.top_k / layer.config.num_experts
    wanted = [c for c in configs() if c.block_m == 16 or c.block_m <= 2 * average]
    if gate_up.form == MXFP4:
        usual = (c for c in wanted if c.block_k <= CHUNK and (average > 16 or (c.block_m == 16 and c.num_stages == 3)))
        twins = [*units_configs(), *register_configs()]
        wanted = [*usual, *(c for c in twins if c.block_m == 8 or c.block_m <= 4 * average)]

    def launch_up(config: GroupedConfig) -> Tensor:
        blocks_of = blocks[config.block_m]
        return experts_gate_up(work.x, gate_up, blocks_of, config, is_interleaved=is_interleaved, clamp=clamp)

    def launch_down(config: GroupedConfig) -> Tensor:
        return experts_down(gated, down, blocks[config.block_m], routing, config)

    blocks = {m: expert_blocks(experts, layer.config.num_experts, m) for m in {c.block_m for c in wanted}}
    gated = launch_up(wanted[0])
    for product_name, launch in (("gate_up", launch_up), ("down", launch_down)):
        compile_ahead(partial(_launch_all, launch, wanted))
        want, timed = launch(wanted[0]).float(), list[tuple[float, GroupedConfig]]()
        for config in wanted:
            try:
                got = launch(config)
                timed.append((seconds_of_launch([partial(launch, config)] * 4), config))
            except (triton.errors.TritonError, RuntimeError) as error:
                print(config, error)
                continue
            if not (got.float() - want).norm() < 2e-2 * want.norm():
                print("WRONG", config)
        best = sorted(timed, key=lambda each: each[0])[:6]
        print(f"{name}, {num_rows} rows, {product_name}:")
        for seconds, config in best:
            print(f"  {seconds * 1e6:8.1f} us  {config}", flush=True)


def _launch_all(launch: Callable[[GroupedConfig], Tensor], wanted: Sequence[GroupedConfig]) -> None:
    for config in wanted:
        try:
            launch(config)
        except (triton.errors.TritonError, RuntimeError):  # reported when it is timed
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description="One mixture of experts by itself.")
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--quantization", choices=["fp8"], help="quantize experts that are not quantized yet")
    parser.add_argument("--sweep", action="store_true", help="time many configurations instead")
    arguments = parser.parse_args()
    rows = arguments.rows or (ROWS if bench_device().type == "cuda" else CPU_ROWS)
    limits = measure_device(str(bench_device()), "bfloat16")
    print(f"{limits}; torch {torch.__version__}, bf16\n", flush=True)
    results = list[ExpertResult]()
    for shape in arguments.shape or SHAPES:
        layer = layer_of(shape, is_fp8=arguments.quantization == "fp8")
        for num_rows in rows:
            if arguments.sweep:
                sweep(shape, layer, num_rows)
            else:
                results.append(measure(shape, layer, num_rows, limits))
        del layer
    if results:
        print_results(results)
        print_json({"bench": "expert_layers", "limits": asdict(limits), "layers": [asdict(each) for each in results]})


if __name__ == "__main__":
    main()
