"""AdaptiveLLM, figure 7: throughput by output limit, for each way to recover preempted requests.

The memory is table 3's: 128 device blocks and 64 host blocks of 16 tokens. Every answer is as long as the limit, as in
the paper.
"""

import dataclasses

from loadtest.scenarios.adaptivellm_table3 import (
    DATA_SETS,
    NUM_DEVICE_BLOCKS,
    NUM_HOST_BLOCKS,
    WAYS,
    data_set,
    scarce_pool,
    serve,
)
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve

NAME = "adaptivellm_fig7"
OUTPUT_LIMITS, LIMITS_ON_A_DEVICE = (16, 32, 64, 128, 256), (16, 128)


def run(stage: Stage) -> Figure:
    """The figure. It uses fewer requests than table 3, since there are five limits."""
    pool = scarce_pool(stage)
    is_modelled = stage.form.models_policies
    limits, num_summaries, num_others = (OUTPUT_LIMITS, 100, 400) if is_modelled else (LIMITS_ON_A_DEVICE, 40, 160)
    rows: list[list[object]] = []
    curves: list[Curve] = []
    for name in DATA_SETS:
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for limit in limits:
            requests = [
                dataclasses.replace(request, output_len=limit)
                for request in data_set(stage, name, num_summaries, limit, num_others)
            ]
            for way in WAYS:
                served = serve(pool, way, requests)
                rates[way].append(served.tokens_per_s)
                over = rates["adaptive"][-1] / served.tokens_per_s
                rows.append([name, limit, way, served.tokens_per_s, over, served.num_dropped, served.num_swapped])
        curves += [
            Curve(f"{name}, {way}", limits, values, len(curves) + index, markers=True)
            for index, (way, values) in enumerate(rates.items())
        ]
    columns = ["lengths", "output limit", "recovery", "output tokens/s", "adaptive / this"]
    return Figure(
        NAME,
        "AdaptiveLLM figure 7: throughput by output limit",
        f"the offline engine on {stage.policy_device}",
        [
            Table(
                f"{NUM_DEVICE_BLOCKS} device blocks, {NUM_HOST_BLOCKS} host blocks",
                [*columns, "dropped", "swapped"],
                rows,
            )
        ],
        [Plot(Axes("Output tokens/s by output limit", "output limit (log)", "tokens/s", log_x=True), curves)],
        [
            "all requests at once",
            "the paper: equal at short limits, where nothing is preempted; up to 1.3 x always recompute at 256",
        ],
    )
