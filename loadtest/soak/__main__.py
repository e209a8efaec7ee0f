"""`python -m loadtest.soak`: starts the README's server with a KV cache that is far too small, and soaks it."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import BinaryIO

from loadtest.headrace_server import headrace_server
from loadtest.invariants import Invariant, invariant_table
from loadtest.soak.soak import Findings, Plan, soak
from loadtest.soak.verdict import Bounds, rest_table

_SERVER_FLAGS = (
    "--dtype float32 --device cpu --kv-cache-memory 12MiB --preemption adaptive --swap-space 3MiB --max-num-seqs 32"
    " --max-num-batched-tokens 128 --max-waiting-requests 64 --max-waiting-seconds 20 --shutdown-timeout 10"
).split()
"""The KV cache holds one context of the quickstart model, so requests preempt each other. In fp32 an answer does not
depend on the batch that it was computed in."""

_MAX_HOURS = 72.0
_LOG_TAIL_BYTES = 4000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak. Returns the exit status: 0 if every invariant holds, else 1."""
    options = _parser().parse_args(arguments)
    bounds = Bounds(options.max_growth_mb, options.max_slope, options.rest_within)
    plan = Plan(
        options.hours * 3600 if options.hours else options.minutes * 60,
        options.round_seconds,
        options.clients,
        options.seed,
        options.large_rounds,
        bounds,
    )
    with tempfile.TemporaryFile() as log:
        with headrace_server([*_SERVER_FLAGS, *options.server_args], log) as server:
            findings = asyncio.run(soak(server.running, server.port, plan, _tell))
        printed = _content(log)
    invariants = [
        *findings.invariants(bounds),
        Invariant("tracebacks in the server's log", printed.count(b"Traceback"), 0),
    ]
    good = all(each.holds for each in invariants)
    _report(findings, invariants, b"" if good else printed[-_LOG_TAIL_BYTES:])
    found = {each.words: each.found for each in invariants}
    print(json.dumps(findings.as_json() | {"good": good, "invariants": found}))
    return 0 if good else 1


def _report(findings: Findings, invariants: Sequence[Invariant], log_tail: bytes) -> None:
    print(rest_table(findings.rests), invariant_table(invariants), sep="\n\n")
    for fault in findings.faults:
        print(f"\n{fault}")
    if findings.ended:
        print(f"\ncut short: {findings.ended}")
    if log_tail:
        print("\nthe end of the server's log:\n" + log_tail.decode(errors="replace"))


def _content(log: BinaryIO) -> bytes:
    log.seek(0)
    return log.read()


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=_up_to(60 * _MAX_HOURS), default=5.0, help="default: 5")
    parser.add_argument("--hours", type=_up_to(_MAX_HOURS), help="duration in hours, instead of --minutes")
    parser.add_argument(
        "--round-seconds", type=_up_to(600), default=10.0, help="seconds of traffic between rests; default: 10"
    )
    parser.add_argument("--clients", type=int, default=24, help="concurrent clients; default: 24")
    parser.add_argument("--seed", type=int, default=0, help="seed of what the clients do; default: 0")
    parser.add_argument("--large-rounds", type=int, default=2, help="first rounds, only large requests; default: 2")
    parser.add_argument("--max-growth-mb", type=float, default=100.0, help="limit for memory at rest, after warm-up")
    parser.add_argument(
        "--max-slope",
        type=float,
        default=60.0,
        help="MB/hour; broken if memory at rest certainly grows faster; inf: not checked",
    )
    parser.add_argument("--rest-within", type=float, default=2.0, help="limit in seconds until the server is at rest")
    flags = "options for the server, last, such as --device cuda --kv-cache-memory 6MiB --tensor-parallel-size 2"
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help=flags)
    return parser


def _up_to(most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        number = float(text)
        if not 0 < number <= most:
            raise argparse.ArgumentTypeError(f"must be above 0 and at most {most:g}")
        return number

    return parse


if __name__ == "__main__":
    raise SystemExit(main())
