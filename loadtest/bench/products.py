"""Time of products with plain and with quantized weights on a GPU, us:

    python -m loadtest.bench.products [--rows 1 16 64 256 2048] [--tune] [--seconds 90]

Each is one linear of Llama-8B. Columns: bf16 with cuBLAS and with skinny_linear; fp8 with skinny_linear, and with two
tensor-core products, torch's and kernels/fp8_linear.py, including the quantization of x; int4 in groups of 128 with
skinny_linear, with kernels/int4_linear.py, and dequantized to a plain matrix first. `--tune` times other tiles instead:
of skinny_linear for quantized weights; of fp8_linear and fp8_units ("units"), without the quantization of x; of
int4_linear ("int4-units"). Every result is compared with the plain matrix's. Measured by replays of CUDA graphs over
weights larger than the L2 cache. Takes about 40 s. Tuning stops soon after --seconds and takes the rows in order. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.dequantize import dequantize
from kernels.fp8_linear import MAX_FP8_ROWS, fp8_linear, fp8_linear_config, fp8_linear_triton
from kernels.fp8_rows import fp8_rows
from kernels.fp8_units import fp8_units_config, fp8_units_triton
from kernels.int4_linear import int4_linear, int4_linear_config, int4_linear_triton
from kernels.quantized_linear import product_of_many_rows, quantized_linear
from kernels.quantized_weight import QuantizedWeight, Weight, quantize_fp8
from kernels.register_product import MOST_ROWS as MOST_REGISTER_ROWS
from kernels.replay_timing import seconds_by_replay
from kernels.skinny_config import FEW_ROWS, MAX_QUANTIZED_ROWS, MAX_ROWS, SkinnyConfig, quantized_config
from kernels.skinny_linear import new_arrivals, skinny_linear, skinny_linear_triton
from kernels.unit_parts import UnitsConfig

SHAPES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
_GROUP = 128
_ROTATED_BYTES = 256 << 20
_MOST_WEIGHTS = 16
_MOST_INT4_ROWS = 512
_SHARED_BYTES = 227 * 1024
_ROUNDS = 5

UNITS, INT4_UNITS = "units", "int4-units"
SYMMETRIC = "int4-symmetric"
FORMS = ["fp8", "int4", SYMMETRIC, UNITS, INT4_UNITS]
_MAY_DIFFER = {"fp8": 1e-2, "int4": 1e-2, SYMMETRIC: 1e-2, UNITS: 5e-2, INT4_UNITS: 1e-2}
"""Largest error against the plain matrix's product, relative to the norm of that product."""
_WEIGHTS = {UNITS: "fp8", INT4_UNITS: "int4"}

Product = Callable[[Tensor, Weight], object]
TunedConfig = SkinnyConfig | UnitsConfig
TunedLaunch = Callable[[QuantizedWeight, Any], Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="time products of quantized weights")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256, 2048])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="forms to tune; default: all")
    parser.add_argument("--seconds", type=float, default=90.0, help="tuning starts no new case after this; default: 90")
    options = parser.parse_args(arguments)
    results = list(_tuned(options.rows, options.forms, options.seconds) if options.tune else _compared(options.rows))
    print(json.dumps(results))


def _compared(all_rows: Sequence[int]) -> Iterator[dict[str, object]]:
    names = ("cuBLAS", "skinny", "fp8 skinny", "fp8 torch", "fp8 units", "int4 skinny", "int4 units", "int4 plain")
    print(f"{'shape':>8} {'rows':>5} " + " ".join(f"{name:>12}" for name in names))
    for shape, (num_features, size) in SHAPES.items():
        arrivals = new_arrivals(num_features, torch.device("cuda"))
        skinny: Product = partial(_skinny, arrivals=arrivals)
        plain, fp8, int4 = (_rotated(form, num_features, size) for form in ("bf16", "fp8", "int4"))
        ways: list[tuple[Product, Sequence[Weight], int]] = [
            (_plainly, plain, 1 << 30),
            (skinny, plain, MAX_ROWS),
            (skinny, fp8, MAX_QUANTIZED_ROWS),
            (_by_torch, fp8, 1 << 30),
            (partial(_by_units, arrivals=arrivals), fp8, MAX_FP8_ROWS),
            (skinny, int4, MAX_QUANTIZED_ROWS),
            (partial(_by_int4_units, arrivals=arrivals), int4, _MOST_INT4_ROWS),
            (_by_quantized_linear, int4, 1 << 30),
        ]
        for rows in all_rows:
            x = torch.randn(rows, size, device="cuda").bfloat16()
            us = [_us(product, x, weights) if rows <= most else None for product, weights, most in ways]
            print(f"{shape:>8} {rows:>5} " + " ".join(f"{'-' if each is None else f'{each:.1f}':>12}" for each in us))
            yield {"shape": shape, "rows": rows} | dict(zip(names, us, strict=True))


def _tuned(all_rows: Sequence[int], forms: Sequence[str], seconds: float) -> Iterator[dict[str, object]]:
    begin = time.monotonic()
    most = {INT4_UNITS: 1 << 30}
    cases = [(form, rows) for rows in all_rows for form in forms if rows <= most.get(form, MAX_QUANTIZED_ROWS)]
    for form, rows in cases:
        for shape, (num_features, size) in SHAPES.items():
            if time.monotonic() - begin > seconds:
                print(f"{shape} {form} {rows} rows: no time left")
                continue
            weights = _rotated(_WEIGHTS.get(form, form), num_features, size)
            x = torch.randn(rows, size, device="cuda").bfloat16()
            assert isinstance(weights[0], QuantizedWeight)
            launch, now = _tuned_launch(form, x, weights[0])
            configs = [now, *(config for config in tuned_configs(form, rows) if config != now)]
            compile_ahead(partial(_launch_all, launch, weights[0], configs))
            want = F.linear(x, dequantize(weights[0])).float()
            for config in configs:
                _compare(launch, weights[0], config, want, _MAY_DIFFER[form])
            timed = {config: _timed(launch, weights, config) for config in configs}
            best = sorted(timed, key=timed.__getitem__)[:4]
            plain = _us(_plainly, x, _rotated("bf16", num_features, size))
            print(
                f"{shape} {form} {rows} rows: now {timed[now]:.1f} us by {now}; cuBLAS of bf16 {plain:.1f}", flush=True
            )
            for config in best:
                print(f"    {timed[config]:7.1f} us by {config}", flush=True)
            all_us = {" ".join(map(str, astuple(config))): round(us, 1) for config, us in timed.items()}
            yield {"shape": shape, "form": form, "rows": rows, "now": timed[now], "us": all_us}


def _tuned_launch(form: str, x: Tensor, weight: QuantizedWeight) -> tuple[TunedLaunch, TunedConfig]:
    """A launch with a choosable config, and the config that the table has."""
    (num_features, size), rows = weight.shape, x.shape[0]
    arrivals = new_arrivals(num_features, torch.device("cuda"))
    if form == UNITS:
        now = fp8_units_config(rows, num_features, size) or fp8_linear_config(rows, num_features, size)
        return partial(_launch_units, *fp8_rows(x), arrivals), now
    if form == INT4_UNITS:
        return partial(_launch_int4_units, x, arrivals), int4_linear_config(rows, num_features, size)
    return partial(_launch_skinny, x, arrivals), quantized_config(rows, weight)


def tuned_configs(form: str, rows: int) -> Iterator[TunedConfig]:
    """Configurations worth a trial. Several programs must fit in a multiprocessor: its four schedulers do the
    dequantization, and two warps occupy only half of them."""
    if form == INT4_UNITS:
        yield from _int4_configs(rows)
        return
    splits: tuple[int, ...] = (1, 2, 4)
    if form == UNITS:
        yield from _fp8_units_configs(rows)
        tiles = [(64, 128, 4, 3), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (128, 128, 4, 4), (128, 128, 8, 4)]
        tiles += [(128, 256, 8, 3)] if rows <= MAX_ROWS else [(128, 128, 8, 3)]
        splits = (1, 2, 4, 8)
    elif rows <= FEW_ROWS:
        tiles = [(32, 128, 2, 3), (32, 128, 2, 4), (32, 128, 2, 6), (32, 128, 2, 8), (32, 128, 1, 4), (64, 128, 2, 4)]
        tiles += [(32, 256, 2, 3), (32, 256, 1, 3), (32, 64, 2, 8)] if form == "fp8" else []
        splits = (1, 2, 4, 8)
    elif rows <= MAX_ROWS:
        tiles = [
            (32, 128, 4, 4),
            (64, 128, 4, 3),
            (64, 128, 4, 4),
            (128, 128, 4, 3),
            (128, 128, 8, 3),
            (128, 128, 8, 4),
        ]
    else:
        tiles = [(64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 4, 3), (128, 128, 8, 3), (128, 128, 8, 4)]
    if form != UNITS and rows <= MOST_REGISTER_ROWS:
        yield from _register_configs(form)
    for block_n, block_k, num_warps, num_stages in tiles:
        for num_splits in splits if rows <= MAX_ROWS else (1,):
            yield SkinnyConfig(block_n, block_k, num_warps, num_stages, num_splits)


def _register_configs(form: str) -> Iterator[SkinnyConfig]:
    """Configurations of kernels/register_product.py: words loaded when they are needed, and a chunk or two ahead."""
    chunk = 64 if form == "fp8" else 128
    for warps, tiles, k_warps, num_splits in product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 4, 8)):
        if warps * k_warps not in (4, 8) or warps * tiles == 1 or k_warps * num_splits > 16:
            continue
        for turn, num_stages in ((2, 1), (4, 1), (1, 2), (2, 2), (2, 3)):
            if num_stages == 1 or k_warps < 4:
                block_n, num_warps = 16 * warps * tiles, warps * k_warps
                yield SkinnyConfig(block_n, turn * chunk, num_warps, num_stages, num_splits, tiles, k_warps)


def _int4_configs(rows: int) -> Iterator[UnitsConfig]:
    """Configurations of kernels/int4_linear.py that fit in a multiprocessor, whose registers hold the sums."""
    for block_m, (block_n, num_warps), num_splits in product(
        (8, 16, 32, 64, 128, 256), ((64, 4), (128, 4), (128, 8), (256, 8)), (1, 2, 4)
    ):
        if not min(rows, 128) <= block_m < 2 * max(rows, 8) or block_m * block_n // num_warps > 4096:
            continue
        for num_stages in (3, 4, 6, 10) if rows <= FEW_ROWS else (3, 4, 6):
            stage_bytes = 256 * block_m + 64 * block_n
            programs = min(3, _SHARED_BYTES // (num_stages * stage_bytes + 1024))
            if programs and (num_stages == 3 or programs * num_stages * stage_bytes <= _SHARED_BYTES * 0.98):
                yield UnitsConfig(block_m, block_n, num_warps, num_stages, num_splits)


def _fp8_units_configs(rows: int) -> Iterator[UnitsConfig]:
    """Of kernels/fp8_units.py."""
    tiles = (64, 4), (128, 4), (128, 8), (256, 8)
    for block_m, (block_n, num_warps), block_k, num_splits in product(
        (16, 32, 64, 128, 256), tiles, (128, 256), (1, 2, 4)
    ):
        if not min(rows, 128) <= block_m < 2 * max(rows, 16) or block_m * block_n // num_warps > 4096:
            continue
        stage_bytes = (block_m + block_n) * block_k
        for programs in (1, 2, 3):
            num_stages = min(8, _SHARED_BYTES // programs // stage_bytes)
            if num_stages >= 3 and (programs == 1 or num_stages < 8):
                yield UnitsConfig(block_m, block_n, num_warps, num_stages, num_splits, block_k)


def _launch_int4_units(x: Tensor, arrivals: Tensor, weight: QuantizedWeight, config: UnitsConfig) -> Tensor:
    return int4_linear_triton(x, weight, None, arrivals, config)


def _launch_skinny(x: Tensor, arrivals: Tensor, weight: QuantizedWeight, config: SkinnyConfig) -> Tensor:
    return skinny_linear_triton(x, weight, None, arrivals, config)


def _launch_units(x: Tensor, scales: Tensor, arrivals: Tensor, weight: QuantizedWeight, config: TunedConfig) -> Tensor:
    if isinstance(config, UnitsConfig):
        return fp8_units_triton(x, scales, weight, None, arrivals, config)
    return fp8_linear_triton(x, scales, weight, None, arrivals, config)


def _launch_all(launch: TunedLaunch, weight: Weight, configs: Sequence[TunedConfig]) -> None:
    assert isinstance(weight, QuantizedWeight)
    for config in configs:
        launch(weight, config)


def _compare(
    launch: TunedLaunch, weight: QuantizedWeight, config: TunedConfig, want: Tensor, may_differ: float
) -> None:
    try:
        error = float((launch(weight, config).float() - want).norm() / want.norm())
    except Exception:  # reported when it is timed
        return
    if not error < may_differ:
        print(f"    WRONG by {error:.1e}: {config}", flush=True)


def _timed(launch: TunedLaunch, weights: Sequence[Weight], config: TunedConfig) -> float:
    try:
        return _us_of([partial(launch, weight, config) for weight in weights if isinstance(weight, QuantizedWeight)])
    except Exception as fault:  # Triton's own exception if a config needs too much shared memory
        print(f"    {config}: {type(fault).__name__}")
        return float("inf")


def _us(product: Product, x: Tensor, weights: Sequence[Weight]) -> float:
    return _us_of([partial(product, x, weight) for weight in weights])


def _us_of(launches: Sequence[Callable[[], object]]) -> float:
    for launch in launches:
        launch()
    return seconds_by_replay(launches, _ROUNDS) * 1e6


def _plainly(x: Tensor, weight: Weight) -> Tensor:
    assert isinstance(weight, Tensor)
    return F.linear(x, weight)


def _by_quantized_linear(x: Tensor, weight: Weight) -> Tensor:
    assert isinstance(weight, QuantizedWeight)
    return quantized_linear(x, weight)


def _by_torch(x: Tensor, weight: Weight) -> Tensor:
    assert isinstance(weight, QuantizedWeight)
    return product_of_many_rows(fp8_rows(x), weight)


def _by_units(x: Tensor, weight: Weight, arrivals: Tensor) -> Tensor:
    assert isinstance(weight, QuantizedWeight)
    return fp8_linear(*fp8_rows(x), weight, None, arrivals)


def _by_int4_units(x: Tensor, weight: Weight, arrivals: Tensor) -> Tensor:
    assert isinstance(weight, QuantizedWeight)
    return int4_linear(x, weight, None, arrivals)


def _skinny(x: Tensor, weight: Weight, arrivals: Tensor) -> Tensor:
    return skinny_linear(x, weight, None, arrivals)


def _rotated(form: str, num_features: int, size: int) -> Sequence[Weight]:
    first = random_weight(form, num_features, size)
    count = max(1, min(_MOST_WEIGHTS, -(-_ROTATED_BYTES // first.nbytes)))
    return [first, *(random_weight(form, num_features, size) for _ in range(count - 1))]


def random_weight(form: str, num_features: int, size: int) -> Weight:
    if form in ("int4", SYMMETRIC):
        packed = torch.randint(256, (num_features, size // 2), dtype=torch.uint8, device="cuda")
        shape = (num_features, size // _GROUP)
        zeros = torch.randint(16, shape, dtype=torch.uint8, device="cuda")
        scales = torch.full(shape, 0.004, dtype=torch.float16, device="cuda")
        return QuantizedWeight(packed, scales, zeros if form == "int4" else None, torch.bfloat16)
    weight = (torch.randn(num_features, size, device="cuda") * 0.02).bfloat16()
    if form == "bf16":
        return weight
    elements, scales = quantize_fp8(weight)
    return QuantizedWeight(elements, scales, None, torch.bfloat16)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
