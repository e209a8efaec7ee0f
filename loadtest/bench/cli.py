"""Command line of the benchmarks: `latency`, `throughput`, `kernels`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from loadtest.bench.options import PROGRAM, KernelsOptions, read_options
from service.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark. Returns the exit status; 2 for a usage error."""
    options, rest = read_options(arguments)
    try:
        if isinstance(options, KernelsOptions):
            from loadtest.bench.kernels import bench_kernels

            return bench_kernels(options.names)
        from loadtest.bench.offline_bench import bench
        from service.settings.reader import read_settings

        return bench(read_settings(rest), options)
    except ConfigError as fault:
        print(f"{PROGRAM}: {fault}", file=sys.stderr)
        return 2
