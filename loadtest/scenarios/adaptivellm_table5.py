"""AdaptiveLLM, table 5: predictors of an iteration's time, compared on what the engine served.

The paper compares eight regressors. Here: the service's predictor, a moving average as its simple counterpart, and the
service's without each of its features. Requests of two kinds, all at once and then at 0.7 of that rate. Predictors are
calibrated as when the service starts; every iteration is predicted before they learn from it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from loadtest.arrivals import PoissonArrivals
from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.predictor_judge import Candidate, Errors, RecordingTime, averaging, errors_of, fitted
from loadtest.baselines.preemption_judge import TimedLedger, Timing, fitted_cost
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest
from loadtest.random_streams import random_stream
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import LOADED_TOKENS, Stage
from service.prediction.iteration_time import FEATURES

NAME = "adaptivellm_table5"
WORKLOADS = ("chatbot", "sharegpt")
SHARE = 0.7
LONGEST_OUTPUT = 128


def run(stage: Stage) -> Figure:
    """The figure."""
    num_tokens = min(LOADED_TOKENS, stage.form.max_num_seqs * stage.form.max_model_len) // 2
    longest = stage.form.max_model_len - LONGEST_OUTPUT
    pools = {"the measured model": (stage.model_pool(num_tokens), 400)}
    if stage.form.models_policies:
        pools["the modelled device"] = stage.pool(), 2000
    tables = []
    for device, (pool, num_requests) in pools.items():
        num_requests = stage.num_requests(num_requests)
        requests = {name: stage.cut_trace(name, num_requests, longest, LONGEST_OUTPUT) for name in WORKLOADS}
        calibration, traffic = _recorded(pool, requests)
        rows = [
            [name, *_cells(errors_of(candidate, calibration, traffic))] for name, candidate in _candidates(pool).items()
        ]
        title = f"On {device}: error in % over {len(traffic)} iterations, {len(calibration)} timings at the start"
        tables.append(Table(title, COLUMNS, rows))
    return Figure(
        NAME,
        "AdaptiveLLM table 5: predictors of an iteration's time",
        "the offline engine",
        tables,
        notes=["the paper's best regressor: 1.3 to 1.8 %, on iterations drawn at random, most of them only decodes"],
    )


COLUMNS = [
    "predictor", "with prompts", "mean", "p90", "too long by", "too short by",
    "decodes", "mean", "p90", "too long by", "too short by",
]  # fmt: skip


def _candidates(pool: KvPool) -> Mapping[str, Candidate]:
    return {
        "the service's": fitted(pool.padded_size),
        "moving average": averaging(),
        **{f"the service's without {name}": fitted(pool.padded_size, name) for name in FEATURES},
        "the service's, padding not known": fitted(None),
    }


def _cells(errors: Sequence[Errors]) -> list[object]:
    return [value for each in errors for value in (each.count, each.mean, each.p90, each.over, each.under)]


def _recorded(
    pool: KvPool, requests: Mapping[str, Sequence[OfflineRequest]]
) -> tuple[Sequence[Timing], Sequence[Timing]]:
    """Timings of the calibration at start-up, and of all iterations that served the requests."""
    iteration_time = RecordingTime(pool.padded_size)
    with pool.clock.working():
        ledger = TimedLedger(fitted_cost(pool, iteration_time))
    policies = EnginePolicies(on_demand(pool), ledger=ledger)
    for name, at_once in requests.items():
        outcome = replay(EngineSystem(name, pool, policies), at_once)
        seconds = sum(iteration.seconds for iteration in outcome.iterations)
        replay(EngineSystem(name, pool, policies), at_rate(at_once, SHARE * len(at_once) / seconds))
    return iteration_time.recorded, ledger.timings


def at_rate(requests: Sequence[OfflineRequest], rate: float) -> list[OfflineRequest]:
    """The requests with Poisson arrivals at `rate` per second."""
    arrivals = PoissonArrivals(rate).arrival_times(len(requests), random_stream(0, "arrivals")).tolist()
    return [dataclasses.replace(each, arrival_s=at_s) for each, at_s in zip(requests, arrivals, strict=True)]
