"""The overhead table, and FineInfer end to end, figures 3 and 4: which part of the system takes how much latency.

Batches of 1, 64 and 256 equal requests; and 3 copies of (1024 in, 1024 out) and of (256 in, 128 out), for which
FineInfer asks how much engine, server and client add to the forward pass. On a GPU only fineinfer_overhead has the
longer ones. Over HTTP, with the client on the same machine.
"""

import itertools
import sys
from collections.abc import Sequence
from operator import attrgetter

from loadtest.model_shapes import LLAMA_135M, plain_ids_end, read_shape
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.forward_alone import forward_seconds
from loadtest.scenarios.stage import Stage
from loadtest.scenarios.time_shares import TimeShares, detokenizing_seconds, measure_shares
from loadtest.serving_table import served

NAME = "overhead_table"
BATCHES = (1, 64, 256)
FINEINFER = (3, 256, 128)
FINEINFER_ON_CPU = ((3, 1024, 256), FINEINFER)
Load = tuple[int, int, int]
"""Requests, tokens in, tokens out."""

_START_TOGETHER = 2
"""The most iterations that the prompts may take. With more, the first requests decode while the last ones still wait,
and the mean latency is less than the sum of all forward passes."""
_SERVER_KV_MEMORY = "12GiB"
"""Enough for every load, with room for a second model on the device."""

_COLUMNS = ("requests", "in", "out", "latency, ms")
_PARTS = ("staging, %", "deciding, %", "between, %", "outside, %", "detokenizing, %")


def run(stage: Stage) -> Figure:
    """The figure. The small form measures batches with the two-layer model, which hardly needs device time."""
    small = stage.form.name == "small"
    lengths = (32, 32) if small else (128, 128)
    batches = [(batch, *lengths) for batch in BATCHES]
    tables = []
    if small:
        tables.append(
            _plain_table(stage.form.shape, batches, "one step is about 1 ms of host work, whatever the batch")
        )
        tables.append(_plain_table(LLAMA_135M, FINEINFER_ON_CPU, "FineInfer's, the longer answers cut to a quarter"))
    else:
        tables.append(_overlapped_table(stage, [*batches[::-1], FINEINFER]))
    return Figure(
        NAME,
        "Overhead: shares of latency; FineInfer figures 3 and 4",
        f"a server over HTTP, {'without overlap (--no-overlap)' if small else 'default settings: iterations overlap'}",
        tables,
        notes=[
            "deciding: scheduling and applying; between: waiting for the interpreter, passing events on",
            "outside: HTTP, framing and client, before and after the engine; detokenizing runs beside the device and is"
            " measured separately: all tokens of the batch / latency",
            "overhead: small form, everything but the device; full form, latency beyond the forward passes alone;"
            " scatter: it is no more than the difference of two runs",
        ],
    )


def _plain_table(shape: str, loads: Sequence[Load], words: str) -> Table:
    rows = []
    for load, (shares, _), detokenizing_s in _measured(shape, loads, ["--no-overlap"]):
        percent = _percent(shares, detokenizing_s)
        rows.append([*load, shares.latency_s * 1e3, *percent, 100 - percent[0]])
    columns = [*_COLUMNS, "device, %", *_PARTS, "overhead, %"]
    return Table(f"{shape}: {words}", columns, rows)


def _overlapped_table(stage: Stage, loads: Sequence[Load]) -> Table:
    shape = stage.form.shape
    measured = _measured(shape, loads, [f"--kv-cache-memory={_SERVER_KV_MEMORY}"])
    pool = stage.model_pool(max(number * (prompt + output) for number, prompt, output in loads))
    rows: list[list[float | str | None]] = []
    for load, runs, detokenizing_s in measured:
        shares = runs[0]
        cells: list[float | str | None] = [None, None]
        if load[0] * load[1] <= _START_TOGETHER * pool.max_num_batched_tokens:
            forward_s = forward_seconds(pool, *load)
            cells = [forward_s * 1e3, overhead(forward_s, *(run.latency_s for run in runs))]
        rows.append([*load, shares.latency_s * 1e3, *cells, *_percent(shares, detokenizing_s)])
    columns = [*_COLUMNS, "forward alone, ms", "overhead, %", "waiting for the device, %", *_PARTS]
    return Table(f"{shape}: parts in % of the latency, most of them while the device computes", columns, rows)


def overhead(forward_s: float, quicker_s: float, slower_s: float) -> float | str:
    """Overhead in % of the quicker run; `scatter` if it is no more than the difference of the two runs."""
    more_s = quicker_s - forward_s
    return 100 * more_s / quicker_s if more_s > slower_s - quicker_s else "scatter"


def _measured(shape: str, loads: Sequence[Load], options: Sequence[str]) -> list[tuple[Load, list[TimeShares], float]]:
    """With one server, for each load: shares in two runs, quicker one first, and the seconds for detokenizing.

    Put loads last that a pause of 50 ms would disturb: a server that has just started captures graphs when it is idle.
    """
    vocab_size = plain_ids_end(read_shape(shape))
    token_s = detokenizing_seconds(read_shape(shape)["vocab_size"])
    with served(shape, sys.executable, options) as (base_url, _):
        measured = []
        prompt_seeds = itertools.count(1)
        for load in loads:
            runs = [measure_shares(base_url, *load, vocab_size, next(prompt_seeds)) for _ in range(2)]
            measured.append((load, sorted(runs, key=attrgetter("latency_s")), load[0] * load[2] * token_s))
        return measured


def _percent(shares: TimeShares, detokenizing_s: float) -> list[float]:
    parts = (shares.device_s, shares.staging_s, shares.deciding_s, shares.between_s, shares.outside_s, detokenizing_s)
    return [100 * part / shares.latency_s for part in parts]
