"""ORCA, figures 9c, 10 and 11 with pipeline stages: ORCA's batches in flight against microbatches.

ORCA keeps one batch of max_bs in flight per stage (figure 8a). With request-level batching, batches go through the
stages in microbatches, "ft(max_bs, mbs)" (figure 8b); mbs = max_bs means no pipelining. The paper's 175B model has two
stages, its 341B model four. Here it is the modelled device (Llama-8B's shape) that is cut, also in the full form.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from loadtest.baselines.engine_system import exact_limit, reserve
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_pipeline import ModelledPipeline
from loadtest.baselines.static_batching import StaticBatching
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest, ServingSystem
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.orca_batching import latency_table
from loadtest.scenarios.rate_sweep import Point, Sweep, latency_plot, requests_note, sweep
from loadtest.scenarios.stage import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS, Stage

NAME = "orca_pipeline"
STAGES = (2, 4)
ORCA_SIZES, FT_SIZES = (8, 32), ((8, 8), (8, 4), (32, 32), (32, 16))
EQUAL_ORCA_SIZES, EQUAL_FT_SIZES = (1, 8), ((1, 1), (8, 8), (8, 4))
EQUAL = "fixed-128x64"
BATCHES = (1, 2, 4, 8, 16, 32)
_BLOCK_SIZE = 16
_MOST_TOKENS = 640
_OUTPUT_LEN, _PROMPT_LEN = 32, 128


def run(stage: Stage) -> Figure:
    """The figure."""
    tables, plots, notes = [_equal_batches()], [], []
    for num_stages in STAGES:
        sweeps = _sweeps(stage, "orca", num_stages, ORCA_SIZES, FT_SIZES)
        title = f"{num_stages} stages, ORCA's trace: median latency / output tokens"
        tables.append(latency_table(stage, title, sweeps, _normalized_s))
        plots.append(latency_plot(f"ORCA's trace, {num_stages} stages", sweeps, _normalized_s, "median ms/token"))
        notes += [_verdict(num_stages, sweeps), requests_note(sweeps)]
    equal = _sweeps(stage, EQUAL, STAGES[0], EQUAL_ORCA_SIZES, EQUAL_FT_SIZES)
    tables.append(latency_table(stage, f"{STAGES[0]} stages, equal requests: median latency", equal, _latency_s))
    plots.append(latency_plot(f"Equal requests, {STAGES[0]} stages", equal, _latency_s, "median ms"))
    return Figure(
        NAME,
        "ORCA figures 9c, 10 and 11 with several stages",
        "the offline engine on the modelled device, cut into stages",
        tables,
        plots,
        [
            *notes,
            "figure 9c: without pipelining both are the same engine here; the paper's 47 % come from control messages"
            " that do not go through NCCL, which the modelled device does not simulate (ours: docs/distributed.md)",
        ],
    )


def _sweeps(
    stage: Stage,
    workload: str,
    num_stages: int,
    orca_sizes: Sequence[int],
    ft_sizes: Sequence[tuple[int, int]],
) -> list[Sweep]:
    makes: list[Callable[[], ServingSystem]] = [partial(_orca, num_stages, size) for size in orca_sizes]
    makes += [partial(_ft, num_stages, size, microbatch) for size, microbatch in ft_sizes]
    return [sweep(stage, make, workload, stage.form.num_probes, stage.form.rate_factors) for make in makes]


def _orca(num_stages: int, max_batch_size: int, num_lanes: int | None = None) -> ServingSystem:
    num_lanes = num_lanes or num_stages
    pool = dataclasses.replace(_pool(num_stages, max_batch_size * num_lanes), num_lanes=num_lanes)
    return reserve(pool, exact_limit, max_batch_size, f"orca({max_batch_size})")


def _ft(num_stages: int, max_batch_size: int, microbatch_size: int) -> ServingSystem:
    return StaticBatching(_pool(num_stages, max_batch_size), exact_limit, max_batch_size, microbatch_size)


def _pool(num_stages: int, max_num_seqs: int) -> KvPool:
    """Memory is not scarce, as in the paper's figures."""
    device = ModelledPipeline(num_stages)
    num_blocks = max_num_seqs * _MOST_TOKENS // _BLOCK_SIZE
    return KvPool(
        device,
        device.clock(),
        num_blocks,
        _BLOCK_SIZE,
        MAX_MODEL_LEN,
        max_num_seqs,
        MAX_NUM_BATCHED_TOKENS,
        vocab_size=128_256,
    )


def _equal_batches() -> Table:
    """Figure 9c: one batch, nothing else arrives."""
    num_stages = STAGES[0]
    rows = []
    for size in BATCHES:
        systems = (
            _orca(num_stages, size, num_lanes=1),
            _ft(num_stages, size, size),
            _orca(num_stages, -(-size // num_stages)),
            _ft(num_stages, size, -(-size // num_stages)),
        )
        rows.append([size, *(1e3 * _seconds(system, size) for system in systems)])
    title = f"{num_stages} stages, one batch of equal requests, {_PROMPT_LEN} tokens in, {_OUTPUT_LEN} out, ms"
    columns = ["batch", "orca, not pipelined", "ft(n, n)", "orca(n/2)", "ft(n, n/2)"]
    return Table(title, columns, rows)


def _seconds(system: ServingSystem, size: int) -> float:
    ids = tuple(range(10, 10 + _PROMPT_LEN))
    outcome = replay(system, [OfflineRequest(i, 0.0, ids, _OUTPUT_LEN) for i in range(size)])
    return max(completion.latency_s for completion in outcome.completions)


def _verdict(num_stages: int, sweeps: Sequence[Sweep]) -> str:
    """ORCA's best throughput against the best of request-level batching."""
    orca, ft = (
        max((one for one in sweeps if one.system.startswith(kind)), key=lambda one: one.capacity)
        for kind in ("orca", "ft")
    )
    return (
        f"{num_stages} stages, throughput under full load: {orca.system} {orca.capacity:.3g} req/s; the best"
        f" request-level batching, {ft.system}, {ft.capacity:.3g}; ratio {orca.capacity / ft.capacity:.2f}"
    )


def _normalized_s(point: Point) -> float:
    return point.median_normalized_s


def _latency_s(point: Point) -> float:
    return point.median_latency_s
