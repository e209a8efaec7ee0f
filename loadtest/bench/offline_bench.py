"""`loadtest.bench latency|throughput|idle`: the engine that `serve` would run, loaded and measured without HTTP."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from loadtest.bench.options import IdleOptions, LatencyOptions, ThroughputOptions
from service.composition.engine_assembly import make_engine
from service.composition.model_parts import load_model_parts
from service.core.clock import MonotonicClock
from service.core.version import distribution_version
from service.errors import ConfigError
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.process.interpreter import settled
from service.settings.settings import Settings

if TYPE_CHECKING:
    from loadtest.bench.model_bench import BenchTarget
    from loadtest.workload import Workload

FEW_PROMPTS = 8
"""Number of prompts of a throughput benchmark on a CPU."""


def bench(settings: Settings, options: LatencyOptions | ThroughputOptions | IdleOptions) -> int:
    """Measure and print. Returns the process's exit status. Raises ConfigError."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    from loadtest.bench.model_bench import bench_idle, bench_latency, bench_throughput
    from loadtest.workload import draw

    workload = _workload_of_lengths(options.workload) if isinstance(options, ThroughputOptions) else None
    target = _load_target(settings)
    with settled(is_gpu=target.is_gpu):
        if isinstance(options, LatencyOptions):
            bench_latency(target, options)
        elif isinstance(options, IdleOptions):
            bench_idle(target, options)
        elif workload is not None:
            num_prompts = options.num_prompts or (workload.num_requests if target.is_gpu else FEW_PROMPTS)
            requests = draw(workload, num_prompts, settings.seed)
            bench_throughput(target, workload.name, [(r.prompt_len, r.output_len) for r in requests])
    return 0


def _workload_of_lengths(name: str) -> Workload:
    """Raises ConfigError if there is no such workload, or if it has shared prefixes, turns or tools."""
    from loadtest.workload import named

    try:
        workload = named(name)
    except ValueError as fault:
        raise ConfigError(f"workload: {fault}") from None
    if workload.shared_prefix or workload.conversation or workload.tools:
        raise ConfigError(f"workload: {name!r} needs a server: the benchmark has no shared prefixes, turns or tools")
    return workload


def _load_target(settings: Settings) -> BenchTarget:
    from loadtest.bench.device_limits import measure_device
    from loadtest.bench.model_bench import BenchTarget
    from loadtest.bench.model_limits import ModelCosts

    recorder, clock = Recorder(Instruments(CollectorRegistry())), MonotonicClock()
    parts = load_model_parts(settings, recorder, clock)
    engine, _ = make_engine(settings, parts, recorder, clock)
    while engine.idle_work.do_some():
        pass
    loaded, block_size = parts.loaded, settings.block_size
    itemsize = 2 if loaded.dtype == "bfloat16" else 4
    num_groups = loaded.layer_groups.tables.size
    kv_token_bytes = num_groups * loaded.block_bytes // block_size
    return BenchTarget(
        engine=engine,
        costs=ModelCosts.of(loaded.model_config, loaded.memory.weights_bytes, kv_token_bytes, itemsize),
        limits=measure_device(loaded.device, loaded.dtype),
        vocab_size=loaded.model_config.vocab_size,
        max_model_len=loaded.max_model_len,
        max_num_seqs=parts.scheduler.max_num_seqs,
        kv_tokens=loaded.num_blocks // num_groups * block_size,
        is_gpu=loaded.device != "cpu",
        facts={
            "model": settings.public_model_name(),
            "architecture": loaded.model_config.architecture,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "headrace": distribution_version(),
            "settings": ", ".join(f"{k}={v}" for k, v in settings.non_default().items() if k != "model"),
        },
    )
