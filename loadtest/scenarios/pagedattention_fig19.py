"""PagedAttention, figure 19: swapping and recomputing by block size, 1 to 256: cost of a preemption, and end to end.

A sequence's blocks, scattered over the pool as after a while of serving, are swapped out and in by the service's own
transfers: one copy per large block, small ones together. Recomputing is one prefill of the same tokens at block size
16: where keys and values are written hardly matters (the paper's curve is flat).

End to end (19b): ShareGPT's lengths under full load, with so little memory that the two ways can differ.
"""

import random
import time
from collections.abc import Callable, Mapping
from operator import itemgetter
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, exact_limit, on_demand
from loadtest.baselines.preemption_judge import recompute_seconds
from loadtest.model_shapes import read_shape
from loadtest.offline.figures_of_merit import mean_normalized_latency_s, num_preemptions, output_throughput
from loadtest.offline.replay import replay
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap, Preemption

NAME = "pagedattention_fig19"
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
_ROUNDS = 7


class EndToEnd(NamedTuple):
    """num_tokens: room in device memory, and as much again on the host. num_requests: in the paper's form."""

    block_sizes: tuple[int, ...]
    num_tokens: int
    num_requests: int


MODELLED = EndToEnd(BLOCK_SIZES, 16_384, 1000)
ON_A_DEVICE = EndToEnd((16, 64, 1), 8_192, 320)
"""The model is loaded anew for each block size. With more memory, so few requests would fit without preemptions."""

_WAYS: Mapping[str, Callable[[], Preemption]] = MappingProxyType({"recompute": AlwaysRecompute, "swap": AlwaysSwap})


def run(stage: Stage) -> Figure:
    """The figure. Prefills are measured first: when the pools are made, the model's memory is free again."""
    lengths = tuple(length for length in (256, 1000) if length < stage.form.max_model_len) or (128,)
    pool = stage.model_pool(2 * stage.form.max_model_len)
    with pool.clock.working():
        recompute = {
            length: median([recompute_seconds(pool, length) for _ in range(_ROUNDS + 1)][1:]) for length in lengths
        }
    moved = {size: {length: _moved(stage, size, length) for length in lengths} for size in BLOCK_SIZES}
    tables, curves = [], []
    for number, length in enumerate(lengths):
        recompute_ms = 1e3 * recompute[length]
        swapped = [1e3 * sum(moved[size][length]) for size in BLOCK_SIZES]
        rows = [
            [
                size,
                *(1e3 * seconds for seconds in moved[size][length]),
                swap_ms,
                recompute_ms,
                "swap" if swap_ms < recompute_ms else "recompute",
            ]
            for size, swap_ms in zip(BLOCK_SIZES, swapped, strict=True)
        ]
        columns = ["block size", "swap out, ms", "swap in, ms", "both, ms", "recompute, ms", "cheaper"]
        tables.append(Table(f"a sequence of {length} tokens, medians of {_ROUNDS}", columns, rows))
        curves.append(Curve(f"swap, {length} tokens", BLOCK_SIZES, swapped, 2 * number, markers=True))
        flat = [recompute_ms] * len(BLOCK_SIZES)
        curves.append(Curve(f"recompute, {length} tokens", BLOCK_SIZES, flat, 2 * number + 1))
    served, rates = end_to_end(stage)
    return Figure(
        NAME,
        "PagedAttention figure 19: swapping and recomputing by block size",
        "the service's transfers and executor alone, each one waited for; end to end the offline engine on"
        f" {stage.policy_device}",
        [*tables, served],
        [
            Plot(Axes("Cost of a preemption", "block size (log)", "ms", log_x=True), curves),
            Plot(Axes("End to end", "block size (log)", "output tokens/s", log_x=True), rates),
        ],
        ["the paper: recomputing is cheaper for small blocks, both are equal from 16 to 64, swapping wins for large"],
    )


def end_to_end(stage: Stage) -> tuple[Table, list[Curve]]:
    """Figure 19b: its table, and one curve per way."""
    sizes, num_tokens, num_full = MODELLED if stage.form.models_policies else ON_A_DEVICE
    requests = stage.trace("sharegpt", stage.num_requests(num_full))
    rows: list[list[object]] = []
    rates: dict[str, dict[int, float]] = {way: {} for way in _WAYS}
    for size in sizes:
        for way, make in _WAYS.items():
            pool = stage.pool(num_tokens, size, num_tokens // size)
            system = EngineSystem(way, pool, EnginePolicies(on_demand(pool), exact_limit, preemption=make()))
            outcome = replay(system, requests)
            rates[way][size] = rate = output_throughput(outcome)
            rows.append([size, way, rate, 1e3 * mean_normalized_latency_s(outcome), num_preemptions(outcome)])
    columns = ["block size", "recovery", "output tokens/s", "normalized, ms/token", "preemptions"]
    title = f"sharegpt, {len(requests)} requests at once, memory for {num_tokens} tokens, and as much on the host"
    return Table(title, columns, sorted(rows, key=itemgetter(0))), [
        Curve(way, sorted(sizes), [values[size] for size in sorted(sizes)], index, markers=True)
        for index, (way, values) in enumerate(rates.items())
    ]


def _moved(stage: Stage, block_size: int, length: int) -> tuple[float, float]:
    """Median seconds to swap a sequence of `length` tokens in scattered blocks out and in."""
    import torch

    from service.core.block_moves import Transfer
    from service.runner.host_blocks import PlainHostBlocks
    from service.runner.kv_storage import KvLayout, KvStorage
    from service.runner.kv_transfer import KvTransfer

    shape, device = read_shape(stage.form.shape), torch.device(stage.torch_device)
    layout = KvLayout(
        shape["num_hidden_layers"],
        block_size,
        shape["num_key_value_heads"],
        shape["head_dim"],
        getattr(torch, stage.form.dtype),
    )
    num_blocks = -(-length // block_size)
    transfer = KvTransfer(
        KvStorage(layout, 2 * num_blocks, device), PlainHostBlocks(layout, num_blocks, pinned=device.type == "cuda")
    )
    chance = random.Random(block_size)
    on_device = tuple(chance.sample(range(2 * num_blocks), num_blocks))
    on_host = tuple(chance.sample(range(num_blocks), num_blocks))

    def seconds(*, to_host: bool) -> float:
        began_s = time.perf_counter()
        transfer.start((Transfer(0, to_host, on_device, on_host),))
        transfer.take_finished(wait=True)
        return time.perf_counter() - began_s

    rounds = [(seconds(to_host=True), seconds(to_host=False)) for _ in range(_ROUNDS + 1)][1:]
    return median(out_s for out_s, _ in rounds), median(in_s for _, in_s in rounds)
