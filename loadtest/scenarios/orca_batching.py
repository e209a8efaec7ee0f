"""ORCA against request-level batching, by maximum batch size: shared by ORCA's figures 10 and 11."""

from collections.abc import Callable, Sequence

from loadtest.baselines.engine_system import exact_limit, reserve
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.static_batching import StaticBatching
from loadtest.scenarios.figure import Table
from loadtest.scenarios.rate_sweep import Point, Sweep, rate_columns, sweep
from loadtest.scenarios.stage import Stage

_LEAST = 96
"""The least number of requests for the full load. On the modelled device, where they cost nothing, `num_probes`."""


def sweep_by_size(stage: Stage, pool: KvPool, workload: str, sizes: Sequence[int], num_batches: int) -> list[Sweep]:
    """For each size ORCA, then static batching. For the full load at least `num_batches` batches are sent at once."""
    sweeps = []
    least = stage.form.num_probes if stage.form.models_policies else _LEAST
    for size in sizes:
        makes = (
            lambda size=size: reserve(pool, exact_limit, size, f"orca({size})"),
            lambda size=size: StaticBatching(pool, exact_limit, size),
        )
        num_requests = max(least, num_batches * size)
        sweeps += [sweep(stage, make, workload, num_requests, stage.form.rate_factors) for make in makes]
    return sweeps


def latency_table(stage: Stage, title: str, sweeps: Sequence[Sweep], latency_s: Callable[[Point], float]) -> Table:
    """One row per system, one column per rate, in ms."""
    rows = [[one.system, one.capacity, *(latency_s(point) * 1e3 for point in one.points)] for one in sweeps]
    return Table(title, ["system", "full load, req/s", *rate_columns(stage)], rows)
