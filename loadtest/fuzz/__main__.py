"""`python -m loadtest.fuzz`: starts the README's server and sends it malformed HTTP.

A case depends only on the seed and its number: `--first 4711 --cases 1` sends that case again.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence

from loadtest.fuzz.fuzz import Plan, as_json, fuzz
from loadtest.headrace_server import headrace_server
from loadtest.invariants import Invariant, invariant_table

_SERVER_FLAGS = "--dtype float32 --device cpu --kv-cache-memory 48MiB --max-num-seqs 64".split()
_LOG_TAIL_BYTES = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzz. Returns the exit status: 0 if every invariant holds, else 1."""
    options = _parser().parse_args(arguments)
    plan = Plan(
        options.cases,
        options.first,
        options.seed,
        options.connections,
        options.stall_every,
        options.max_growth_mb,
        options.show,
    )
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as data:
        with headrace_server([*_SERVER_FLAGS, "--data-dir", data], log) as server:
            began_s = time.monotonic()
            findings = asyncio.run(fuzz(server.running, server.port, plan, _tell))
            took_s = time.monotonic() - began_s
        log.seek(0)
        printed = log.read()
    invariants = [
        *findings.invariants(plan),
        Invariant("tracebacks in the server's log", printed.count(b"Traceback"), 0),
    ]
    good = all(each.holds for each in invariants)
    print(invariant_table(invariants))
    for fault in findings.faults:
        print(f"\n{fault}")
    if findings.ended:
        print(f"\ncut short: {findings.ended}")
    if not good:
        print("\nthe end of the server's log:\n" + printed[-_LOG_TAIL_BYTES:].decode(errors="replace"))
    print(json.dumps(as_json(findings) | {"good": good, "seconds": round(took_s, 1)}))
    return 0 if good else 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m loadtest.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--connections", type=int, default=32, help="concurrent connections; default: 32")
    parser.add_argument("--stall-every", type=int, default=1000, help="every Nth case stalls; 0: none; default: 1000")
    parser.add_argument("--max-growth-mb", type=float, default=100.0, help="memory growth allowed after the warm-up")
    parser.add_argument("--show", type=int, default=20, help="broken cases to print in full; default: 20")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
