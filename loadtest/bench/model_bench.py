"""`loadtest.bench latency|throughput|idle`: a model in the engine that the service would run, without HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loadtest.bench.device_idle import idle_json, measure_idle, output_len_of, print_idle
from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.latency import latency_json, measure_latency, print_latency
from loadtest.bench.model_limits import ModelCosts
from loadtest.bench.options import IdleOptions, LatencyOptions
from loadtest.bench.report import print_json
from loadtest.bench.throughput import measure_throughput, print_throughput, throughput_json
from service.engine.engine import Engine
from service.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """An idle engine and the facts about it.

    kv_tokens: capacity of the KV cache. max_num_seqs: the most sequences in an iteration.
    facts: further facts for the report, about the model and the settings.
    """

    engine: Engine
    costs: ModelCosts
    limits: DeviceLimits
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    kv_tokens: int
    is_gpu: bool
    facts: dict[str, str]


def bench_latency(target: BenchTarget, options: LatencyOptions) -> None:
    """Print the table and the line of JSON. Raises ConfigError if a batch cannot run at once."""
    batch_sizes = options.batch_sizes or ((1, 8, 64, 256) if target.is_gpu else (1, 8))
    lengths = (options.input_len, options.output_len or (512 if target.is_gpu else 64))
    _check_length(target, *lengths)
    for batch_size in batch_sizes:
        _check_batch(target, "batch-sizes", batch_size, sum(lengths))
    _print_target(target)
    rows = measure_latency(target.engine, target.costs, target.limits, batch_sizes, lengths, target.vocab_size)
    print_latency(rows)
    own = {"input_len": lengths[0], "output_len": lengths[1], "rows": latency_json(rows)}
    print_json({"bench": "latency", **_facts(target), **own})


def bench_idle(target: BenchTarget, options: IdleOptions) -> None:
    """Print the tables and the line of JSON. Raises ConfigError if the batch cannot run at once."""
    output_len = output_len_of(options.batch_size, options.input_len, options.num_steps)
    _check_length(target, options.input_len, output_len)
    _check_batch(target, "batch-size", options.batch_size, options.input_len + output_len)
    _print_target(target)
    idle = measure_idle(target.engine, options.batch_size, options.input_len, options.num_steps, target.vocab_size)
    print_idle(idle)
    print_json({"bench": "idle", **_facts(target), "input_len": options.input_len, **idle_json(idle)})


def bench_throughput(target: BenchTarget, workload: str, lengths: Sequence[tuple[int, int]]) -> None:
    """Print the table and the line of JSON. lengths: (prompt, output) tokens per request. Raises ConfigError."""
    for prompt, output in lengths:
        _check_length(target, prompt, output)
    _print_target(target)
    row = measure_throughput(
        target.engine, target.costs, target.limits, workload, lengths, target.max_num_seqs, target.vocab_size
    )
    print_throughput(row)
    print_json({"bench": "throughput", **_facts(target), **throughput_json(row)})


def _check_length(target: BenchTarget, prompt: int, output: int) -> None:
    longest = min(target.max_model_len, target.kv_tokens)
    if prompt + output > longest:
        raise ConfigError(f"a request of {prompt} + {output} tokens is longer than the context of {longest}")


def _check_batch(target: BenchTarget, name: str, batch_size: int, length: int) -> None:
    if batch_size > target.max_num_seqs:
        raise ConfigError(f"{name}: {batch_size} is more than max-num-seqs ({target.max_num_seqs})")
    if batch_size * length > target.kv_tokens:
        raise ConfigError(f"{name}: {batch_size} sequences of {length} tokens; the KV cache holds {target.kv_tokens}")


def _print_target(target: BenchTarget) -> None:
    print(", ".join(f"{name} {value}" for name, value in target.facts.items() if value))
    print(f"{target.limits}\n", flush=True)


def _facts(target: BenchTarget) -> dict[str, object]:
    return {**target.facts, "limits": asdict(target.limits)}
