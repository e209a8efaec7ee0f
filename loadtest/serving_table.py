"""Serving figures on one H200, over HTTP: ours beside vLLM's, the goal and the limit.

`python -m loadtest.serving_table [MODEL ...]` starts the server once per model (dummy weights, default settings) and
sends the workload of every row (loadtest/serving_rows.py): streaming, temperature 0, end of sequence ignored, prompts
of random ids. Takes about two minutes per model.
The server captures most of its CUDA graphs when it is idle, and consecutive rows leave it no idle time. With
`--captured` all rows wait until it has them. With `--deterministic-share` they always wait, and the share is added to
the row's name.
After a model's rows follow its server's host profile (FineInfer's table, over all rows together) and, for rows that ask
for it, the same requests through the engine without HTTP.
`python -m loadtest.serving_table --markdown FILE` prints the table of docs/figures.md from a saved run.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

from loadtest.arrivals import AllAtOnce, PoissonArrivals
from loadtest.metrics import RunLabels, summarize, without_long_arrays
from loadtest.model_shapes import LLAMA_31_8B, QWEN3_06B, plain_ids_end, read_shape, shape_folder
from loadtest.process_cpu import CpuUse
from loadtest.prompts import BodyOptions
from loadtest.random_streams import random_stream
from loadtest.runner import LoadPlan, default_num_processes, run_load
from loadtest.server_facts import fetch_server_facts
from loadtest.server_process import RunningServer, free_port, running_server
from loadtest.serving_rows import FIRST_ASKED, FIRST_REQUEST, OF_OFFLINE, ROWS, SEED, START, Row, Target
from loadtest.table import format_figure
from loadtest.trace import with_arrivals
from loadtest.workload import draw, named

_CACHED_AT_MOST = 0.01
_POLL_S = 0.1
_CACHED_AT_LEAST = 0.9
"""For prompts sent again. It is not 1: the tokens after the last full block, at least one, are always computed."""
_STREAMS_OF_A_SHARE = 4

SERVER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    LLAMA_31_8B: ("--max-model-len", "20k"),
    QWEN3_06B: ("--max-model-len", "8192"),
}


@contextmanager
def served(
    model: str, python: str, extra: Sequence[str], output: BinaryIO | None = None
) -> Iterator[tuple[str, RunningServer]]:
    """Yields the server's base URL, and the server. output: a file for what it prints."""
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "service", "serve", *_model_options(model), "--port", str(port), *extra]
    with running_server(command, f"{base_url}/ready", output=output) as server:
        yield base_url, server


def _model_options(model: str) -> list[str]:
    return [str(shape_folder(model)), "--load-format", "dummy", *SERVER_OPTIONS.get(model, ())]


def host_profile(output: str) -> str:
    """The table printed by a server with --profile-host."""
    rows = output[output.rindex("host profile of") :].splitlines()
    return "\n".join(rows[: 1 + next(i for i, row in enumerate(rows) if row.startswith("other"))])


def await_graphs(output: int, kind: str, timeout_s: float = 120.0) -> None:
    """Wait until the server with this log file has captured all CUDA graphs of this kind of steps. Raises
    TimeoutError."""
    late_s = time.monotonic() + timeout_s
    while f"all CUDA graphs of {kind} steps are captured".encode() not in os.pread(output, os.fstat(output).st_size, 0):
        if time.monotonic() > late_s:
            raise TimeoutError(f"in {timeout_s:g} s the server has not captured all CUDA graphs of {kind} steps")
        time.sleep(_POLL_S)


def offline_requests_per_s(model: str, row: Row, python: str, extra: Sequence[str]) -> float:
    """Requests/s of the row, all sent at once, through the engine without HTTP."""
    command = [python, "-m", "loadtest.bench", "throughput", *_model_options(model), *extra]
    command += ["--workload", row.workload, "--num-prompts", str(row.num_requests), "--seed", str(row.seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["requests_per_s"])


def measure(
    base_url: str,
    row: Row,
    vocab_size: int,
    num_processes: int,
    pid: int | None = None,
    models: Sequence[str] = (),
    deterministic_share: float = 0.0,
) -> dict[str, Any]:
    """Measure one row. Returns a result as `loadtest run --save` writes it. Raises RuntimeError if a request failed.

    Every row has its own prompts, unless it has `prompts_of`: none of them is in the server's prefix cache. Also raises
    RuntimeError if that is not so.

    pid: of the server, if it runs here: adds its CPU time per token during the row to the result.
    models: names that requests take turns at; empty: the server's own. deterministic_share: share of the requests that
    ask to be deterministic. A row with a single request sends several one after another instead, if the share is
    neither 0 nor 1.
    """
    process = AllAtOnce() if row.request_rate is None else PoissonArrivals(row.request_rate)
    is_a_part_of_one = row.num_requests == 1 and 0 < deterministic_share < 1
    num_requests = _STREAMS_OF_A_SHARE if is_a_part_of_one else row.num_requests
    if is_a_part_of_one:
        num_processes = 1
    times = process.arrival_times(num_requests, random_stream(SEED, "arrivals"))
    prompt_seed = zlib.crc32((row.prompts_of or row.name).encode())
    drawn = draw(named(row.workload), num_requests, row.seed, prompt_seed=prompt_seed)
    requests = with_arrivals(drawn, times.tolist())
    served = tuple(models) or (fetch_server_facts(base_url, {}).model_id,)
    options = BodyOptions(
        served[0], vocab_size=vocab_size, more_models=served[1:], deterministic_share=deterministic_share
    )
    use = None if pid is None else CpuUse(pid)
    plan = LoadPlan(
        base_url,
        tuple(requests),
        options,
        max_concurrency=1 if is_a_part_of_one else 0,
        num_processes=num_processes,
        warmup_requests=0,
    )
    outcome = run_load(plan, around=use)
    labels = RunLabels(
        "openai",
        "headrace",
        options.model,
        row.name,
        workload=row.workload,
        seed=row.seed,
        num_processes=num_processes,
        request_rate=row.request_rate or math.inf,
    )
    result = summarize(outcome, labels)
    if result["failed"]:
        raise RuntimeError(f"{row.name}: {result['failed']} requests failed: {result['errors_by_kind']}")
    result["input_throughput"] = result["total_input_tokens"] / result["duration"]
    cached = result["total_cached_tokens"] / result["total_input_tokens"]
    if cached < _CACHED_AT_LEAST if row.prompts_of else cached > _CACHED_AT_MOST:
        raise RuntimeError(f"{row.name}: {cached:.1%} of the prompts' tokens came from the prefix cache")
    if use is not None:
        result["host_us_per_token"] = use.seconds / result["total_output_tokens"] * 1e6
    return result


def lines(name: str, targets: Sequence[Target], result: Mapping[str, Any]) -> list[list[str]]:
    """Table lines with the cells row, figure, ours, vLLM, goal, limit, verdict."""
    return [
        [
            name,
            target.title,
            *(format_figure(value) for value in (result[target.key], target.vllm, target.goal, target.limit)),
            target.verdict(result[target.key]),
        ]
        for target in targets
    ]


def markdown_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Saved results as one Markdown table: a line per figure; for each model a column for ours and one for vLLM's."""
    saved = {(result["shape"], result["label"]): result for result in results}
    models = [model for model in ROWS if any(shape == model for shape, _ in saved)]
    cells: dict[str, dict[str, list[str]]] = {}
    for model in models:
        for name, targets in (("start", START), *((row.name, row.targets) for row in ROWS[model])):
            for target in targets:
                ours = saved.get((model, name), {}).get(target.key)
                figures = [format_figure(value) for value in (ours, target.vllm)]
                cells.setdefault(f"{name}: {target.title}", {})[model] = figures
    head = [cell for model in models for cell in (model, "vLLM")]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for title, by_model in cells.items():
        values = [cell for model in models for cell in by_model.get(model, ["", ""])]
        lines.append(f"| {title} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print each row as it comes. Save all results, one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(ROWS), metavar="MODEL", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rows", nargs="+", help="names of rows to measure; default: all")
    parser.add_argument("--processes", type=int, default=default_num_processes(), help="client processes")
    parser.add_argument("--python", default=sys.executable, help="Python interpreter of the server")
    parser.add_argument("--out", type=Path, default=Path("serving_table.jsonl"))
    share = "share of requests that ask to be deterministic; with several values all rows run for each"
    parser.add_argument("--deterministic-share", type=float, nargs="+", default=[0.0], metavar="SHARE", help=share)
    parser.add_argument("--captured", action="store_true", help="start the rows when all CUDA graphs are captured")
    parser.add_argument("--http-only", action="store_true", help="skip the engine without HTTP, which has one rank")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the table of a saved run; measure nothing")
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help="options for the server, last")
    args = parser.parse_args()
    if args.markdown:
        print(markdown_table([json.loads(line) for line in args.markdown.read_text(encoding="utf-8").splitlines()]))
        return
    with args.out.open("w", encoding="utf-8") as file:
        for model in args.models:
            rows = [row for row in ROWS[model] if not args.rows or row.name in args.rows]
            for result in _measure_model(model, rows, args):
                file.write(json.dumps({**result, "shape": model}) + "\n")
                file.flush()


def _measure_model(model: str, rows: Sequence[Row], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Print and yield each result as it comes."""
    vocab_size = plain_ids_end(read_shape(model))
    _print([model, "", "ours", "vLLM 0.24.0", "goal", "limit", ""])
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryFile() as output:
        with served(model, args.python, ["--profile-host", *args.server_args], output) as (base_url, server):
            first = measure(base_url, FIRST_REQUEST, vocab_size, 1)
            start = {"label": "start", "start_s": server.start_s, "first_ttft_ms": first["median_ttft_ms"]}
            yield start
            _print_all("start", START, start)
            if args.captured or any(args.deterministic_share):
                await_graphs(output.fileno(), "plain")
            if any(args.deterministic_share):  # their graphs are captured only after the first such request
                measure(base_url, FIRST_ASKED, vocab_size, 1, deterministic_share=1.0)
                await_graphs(output.fileno(), "deterministic")
            for share, row in product(args.deterministic_share, rows):
                row = replace(row, name=f"{row.name}, {share:.0%}") if share else row
                measured = measure(base_url, row, vocab_size, args.processes, server.pid, deterministic_share=share)
                results[row.name] = result = without_long_arrays(measured)
                yield result
                _print_all(row.name, row.targets, result)
        output.seek(0)
        profile = host_profile(output.read().decode(errors="replace"))
    print(profile, flush=True)
    yield {"label": "host profile", "text": profile}
    for row in rows:
        if row.beside_offline and row.name in results and not args.http_only:
            offline = offline_requests_per_s(model, row, args.python, args.server_args)
            share = results[row.name]["request_throughput"] / offline
            compared = {"label": f"{row.name}, offline", "request_throughput": offline, OF_OFFLINE.key: share}
            yield compared
            _print_all(row.name, [OF_OFFLINE], compared)


def _print_all(name: str, targets: Sequence[Target], result: Mapping[str, Any]) -> None:
    for cells in lines(name, targets, result):
        _print(cells)


def _print(cells: Sequence[str]) -> None:
    widths = (22, 28, 9, 12, 9, 9, 7)
    print(
        "".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
