"""Command line of `python -m loadtest.bench`. Does not import torch, so that `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

PROGRAM = "python -m loadtest.bench"

_EPILOG = """\
MODEL and every option of `headrace serve` may follow (--load-format dummy, --dtype, --max-num-seqs ...): the engine is
built as for serving. Prints a table that compares with the limit set by the device's bandwidth and FLOP/s, which are
measured at the start. The last line is JSON.
"""


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Batches of equal requests. None: a default for the device."""

    batch_sizes: tuple[int, ...] | None
    input_len: int
    output_len: int | None


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """All requests of a workload (loadtest/workload.py) at once. num_prompts None: a default for the device."""

    workload: str
    num_prompts: int | None


@dataclass(frozen=True, slots=True)
class IdleOptions:
    """Steps in which a whole batch of equal requests decodes."""

    batch_size: int
    input_len: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class KernelsOptions:
    """Kernels whose name begins with one of `names`; all if it is empty."""

    names: tuple[str, ...]


BenchOptions = LatencyOptions | ThroughputOptions | IdleOptions | KernelsOptions


def read_options(arguments: Sequence[str]) -> tuple[BenchOptions, list[str]]:
    """The benchmark's own options, and the arguments left for the service's settings. Prints and exits on errors."""
    parser = _parser()
    known, rest = parser.parse_known_args(arguments)
    match known.bench:
        case "latency":
            return LatencyOptions(known.batch_sizes, known.input_len, known.output_len), rest
        case "throughput":
            return ThroughputOptions(known.workload, known.num_prompts), rest
        case "idle":
            return IdleOptions(known.batch_size, known.input_len, known.num_steps), rest
        case _:
            if rest:
                parser.error(f"bench kernels takes no {rest[0]}")
            return KernelsOptions(tuple(known.names)), []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Measure a model or the kernels, offline.")
    benches = parser.add_subparsers(dest="bench", required=True)
    latency = _add(benches, "latency", "time of decode steps by batch size, and how it grows with the context")
    latency.add_argument("--batch-sizes", type=_sizes, help="comma-separated; 1,8,64,256 on a GPU, 1,8 on a CPU")
    latency.add_argument("--input-len", type=_size, default=128, help="tokens per prompt (128)")
    latency.add_argument("--output-len", type=_size, help="tokens to generate; 512 on a GPU, 64 on a CPU")
    throughput = _add(benches, "throughput", "all requests of a workload at once: requests/s and tokens/s")
    throughput.add_argument(
        "--workload",
        default="prefill",
        help="lengths of a workload of `headrace loadtest`: prefill (2048 in, 1 out; the default), orca, sharegpt,"
        " 1kx1k, fixed-INxOUT ...",
    )
    throughput.add_argument("--num-prompts", type=_size, help="default: the workload's number on a GPU, 8 on a CPU")
    idle = _add(benches, "idle", "device idle time while a batch decodes, and the kernels around the gaps")
    idle.add_argument("--batch-size", type=_size, default=256, help="requests that decode together (256)")
    idle.add_argument("--input-len", type=_size, default=128, help="tokens per prompt (128)")
    idle.add_argument("--num-steps", type=_size, default=40, help="steps to profile (40)")
    kernels = benches.add_parser("kernels", help="each kernel alone, at Llama-8B's shapes; on a CPU its reference")
    kernels.add_argument("names", nargs="*", help="only kernels whose name begins with one of these")
    return parser


def _add(benches: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    return benches.add_parser(
        name,
        help=text,
        description=text,
        epilog=_EPILOG,
        usage=f"{PROGRAM} {name} [options] [MODEL] [options of serve]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _size(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in text.split(","))
