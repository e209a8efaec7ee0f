"""Measures a model on this machine for `headrace plan`, and checks the plan's predictions against measurements.

    python -m loadtest.capacity.measure MODEL --out mine.json --check 0.3 0.6 0.9

Runs the engine without HTTP, with MODEL's real weights (or --load-format dummy). Times iterations of many sizes; on a
CPU also those of a run with all requests at once. Each --check replays the workload at that share of the predicted
throughput, and prints predictions beside measurements.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.arrivals import PoissonArrivals
from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.predictor_judge import RecordingTime
from loadtest.capacity.lane import Layout, lane_of
from loadtest.capacity.replica_profile import (
    Divisible,
    ReplicaProfile,
    Timing,
    WindowedLayers,
    read_profile,
    write_profile,
)
from loadtest.capacity.simulation import SEED, Seen, chunk_budget, requests_of, simulate
from loadtest.offline.replay import offline_requests, replay
from loadtest.offline.serving_system import ReplayOutcome
from loadtest.offline.work_clock import WorkClock
from loadtest.random_streams import random_stream
from loadtest.trace import TraceRequest, with_arrivals
from loadtest.workload import named
from service.config import CacheConfig, ModelSource
from service.core.iteration import IterationPlan, IterationResult
from service.engine.ports import Executor, PendingIteration
from service.errors import ConfigError, ModelLoadError
from service.kvcache.attention_window import AttentionWindow
from service.prediction.calibration import calibrate
from service.prediction.workload import Workload

BLOCK_SIZE = 16
MEMORY_UTILIZATION = 0.9
UNDIVIDED_S = 0.5e-3
"""Norms, sampling and launches of a step of Llama-8B on one H200."""


class Measured(NamedTuple):
    """The loaded model, and the facts for its profile."""

    pool: KvPool
    name: str
    is_gpu: bool
    divisible: Divisible | None


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if the model cannot be measured."""
    args = _parser().parse_args(arguments)
    if args.cpu_seconds:
        os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is imported
    try:
        loaded = _loaded(args)
        requests = requests_of(named(args.workload), args.num_requests, loaded.pool.max_model_len)
        profile = measured_profile(loaded, requests, args.out.stem)
    except (ConfigError, ModelLoadError, ValueError) as fault:
        print(f"loadtest.capacity.measure: {fault}", file=sys.stderr)
        return 2
    write_profile(args.out, profile)
    print(f"{args.out}: {len(profile.timings)} iterations of {profile.source}")
    if args.check:
        print("\n".join(comparison(loaded, read_profile(str(args.out)), requests, args.check)))
    return 0


def measured_profile(loaded: Measured, requests: Sequence[TraceRequest], name: str) -> ReplicaProfile:
    """requests: run once at once as a warm-up; on a CPU run again and timed, host time included."""
    pool = loaded.pool
    _replayed(loaded, requests, None)
    timings = _probed(pool)
    if not loaded.is_gpu:
        recorder = _Recorder(pool.executor)
        outcome = _replayed(loaded._replace(pool=dataclasses.replace(pool, executor=recorder)), requests, None)
        seconds = [iteration.seconds for iteration in outcome.iterations if iteration.batch_size]
        timings += zip(recorder.workloads, seconds, strict=True)
    return ReplicaProfile(
        name=name,
        source=loaded.name,
        kv_tokens=pool.num_tokens,
        block_size=pool.block_size,
        max_model_len=pool.max_model_len,
        max_num_seqs=pool.max_num_seqs,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        cuts_prompts=loaded.is_gpu,
        divisible=loaded.divisible,
        windowed=_windowed(pool.window),
        timings=tuple(Timing.of(workload, taken_s) for workload, taken_s in timings),
    )


def _windowed(window: AttentionWindow | None) -> WindowedLayers | None:
    if window is None:
        return None
    num_full, num_windowed = window.groups
    return WindowedLayers(window_tokens=window.num_tokens, num_full_groups=num_full, num_windowed_groups=num_windowed)


def comparison(
    loaded: Measured, profile: ReplicaProfile, requests: Sequence[TraceRequest], shares: Sequence[float]
) -> list[str]:
    """A table: each figure, predicted and measured, at these shares of the predicted throughput."""
    lane = lane_of(profile, Layout(1, 1))
    highest = simulate(profile, lane, requests).requests_per_s
    lines = ["requests/s  figure      predicted  measured  predicted / measured"]
    for rate in (None, *(share * highest for share in shares)):
        predicted = simulate(profile, lane, requests, rate)
        measured = Seen.of(_replayed(loaded, requests, rate), 0.0)
        for title, figure in _AT_ONCE if rate is None else _AT_A_RATE:
            said, seen = figure(predicted), figure(measured)
            at = "at once" if rate is None else f"{rate:.3g}"
            lines.append(f"{at:<12}{title:<12}{said:<11.4g}{seen:<10.4g}{said / seen:.2f}")
    return lines


Figures = tuple[tuple[str, Callable[[Seen], float]], ...]
"""(title, how to read it from what was seen)."""
_AT_ONCE: Figures = (("requests/s", lambda seen: seen.requests_per_s),)
_AT_A_RATE: Figures = (
    ("TTFT p50", lambda seen: seen.ttft_s(0.5)),
    ("TTFT p95", lambda seen: seen.ttft_s(0.95)),
    ("TPOT p50", lambda seen: seen.tpot_s(0.5)),
    ("TPOT p95", lambda seen: seen.tpot_s(0.95)),
)


def _replayed(loaded: Measured, requests: Sequence[TraceRequest], request_rate: float | None) -> ReplayOutcome:
    pool = loaded.pool
    if request_rate is not None:
        arrivals = PoissonArrivals(request_rate).arrival_times(len(requests), random_stream(SEED, "arrivals"))
        requests = with_arrivals(requests, arrivals.tolist())
    budget = chunk_budget(pool.max_num_batched_tokens, cuts_prompts=loaded.is_gpu)
    system = EngineSystem(loaded.name, pool, EnginePolicies(on_demand(pool), chunk_budget=budget))
    return replay(system, offline_requests(requests, pool.vocab_size))


def _probed(pool: KvPool) -> list[tuple[Workload, float]]:
    recording = RecordingTime(pool.padded_size)

    def execute(plan: IterationPlan) -> IterationResult:
        return pool.executor.launch(plan).wait()

    with pool.clock.working():
        calibrate(
            execute,
            recording,
            pool.clock,
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            max_tokens=pool.max_num_batched_tokens,
            max_model_len=pool.max_model_len,
            max_num_seqs=pool.max_num_seqs,
            vocab_size=pool.vocab_size,
            num_layer_groups=1 if pool.window is None else pool.window.groups.size,
        )
    return recording.recorded


class _Recorder:
    """An executor that records what each plan computes."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.workloads: list[Workload] = []

    def launch(self, plan: IterationPlan) -> PendingIteration:
        if plan.computes:
            self.workloads.append(Workload.of(plan))
        return self._executor.launch(plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.capacity.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="local folder of the model")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the profile to write")
    parser.add_argument("--workload", default="orca", metavar="NAME", help="see `headrace loadtest workloads` (orca)")
    parser.add_argument("--num-requests", type=int, default=100, metavar="N", help="requests per run (100)")
    parser.add_argument(
        "--check",
        type=float,
        nargs="+",
        default=[],
        metavar="SHARE",
        help="check at this share of the predicted throughput, such as 0.5",
    )
    parser.add_argument("--load-format", choices=("auto", "pt", "dummy"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--max-model-len", type=int, metavar="N")
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N")
    parser.add_argument("--kv-cache-memory", type=int, metavar="BYTES")
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="measure CPU time of one thread, for a CPU that is also busy with other work",
    )
    return parser


def _loaded(args: argparse.Namespace) -> Measured:
    from service.models.model_folder import resolve_model_folder  # here: torch takes seconds, --help does not need it
    from service.runner.load import load_executor

    folder = resolve_model_folder(args.model, None, args.load_format)
    source = ModelSource(
        model=str(folder),
        revision=None,
        tokenizer=None,
        chat_template=None,
        load_format=args.load_format,
        dtype=args.dtype,
        device=args.device,
        max_model_len=args.max_model_len,
        seed=SEED,
    )
    cache = CacheConfig(BLOCK_SIZE, MEMORY_UTILIZATION, args.kv_cache_memory, by_layer_groups=True)
    loaded = load_executor(source, folder, cache, args.max_num_seqs, args.max_num_batched_tokens)
    while loaded.idle_work.do_some():
        pass
    is_gpu, memory, config = loaded.device != "cpu", loaded.memory, loaded.model_config
    most_new = (2 if is_gpu else 1) * args.max_num_batched_tokens
    windows, groups = config.sliding_windows, loaded.layer_groups
    window = AttentionWindow.of_layers(groups, windows, loaded.max_model_len, most_new)
    pool = KvPool(
        loaded.runner,
        WorkClock(time.process_time if args.cpu_seconds else time.perf_counter),
        loaded.num_blocks,
        BLOCK_SIZE,
        loaded.max_model_len,
        args.max_num_seqs,
        args.max_num_batched_tokens,
        config.vocab_size,
        padded_size=loaded.runner.replays.padded_size,
        overlap=is_gpu,
        window=window,
    )
    divisible = Divisible(
        memory_bytes=memory.weights_bytes + memory.kv_cache_bytes,
        weights_bytes=memory.weights_bytes,
        kv_token_bytes=groups.tables.size * loaded.block_bytes // BLOCK_SIZE,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        undivided_s=UNDIVIDED_S,
    )
    clock = "CPU seconds of one thread" if args.cpu_seconds else f"{loaded.num_threads} host threads"
    return Measured(
        pool, f"{folder.name}, {loaded.dtype}, {loaded.device}, {clock}", is_gpu, divisible if is_gpu else None
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
