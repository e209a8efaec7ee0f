"""Checks our load generator against guidellm: both measure the same server, taking turns.

`python -m loadtest.compare_guidellm --guidellm PATH` (PATH: the program in an environment of its own, made by
`pip install guidellm`). Chat completions, the same prompts for both, answers of fixed length. Throughput is measured
with a closed loop of clients, latency with requests at a constant rate. (In a closed loop, TTFT depends on the client
too: one that sends its next request later waits less for the iteration in flight.) Throughput and TTFT should agree
within 5 %, in medians over the rounds. They alternate in going first, since a shared machine changes under both.
The server is `headrace serve` with the quickstart model. `--step-ms` removes the model's noise: the same service over a
device that only takes time (`host_server.py`). `--stub` removes the service too: a server with known timings, against
which both generators can be judged.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.arrivals import ConstantArrivals
from loadtest.metrics import RunLabels, summarize
from loadtest.prompts import BodyOptions, request_body
from loadtest.random_streams import random_stream
from loadtest.runner import LoadPlan, run_load
from loadtest.server_facts import fetch_server_facts
from loadtest.server_process import free_port, running_server
from loadtest.stub_server import running_stub
from loadtest.trace import TraceRequest, with_arrivals
from loadtest.workload import draw, fixed

AGREEMENT = 0.05
THROUGHPUTS, LATENCIES = ("requests/s", "output tokens/s"), ("TTFT, ms: median", "ITL, ms: median")
FIGURES = THROUGHPUTS + LATENCIES
_COMPLETE = 0.95
"""guidellm may end while a few requests are in flight, so this share of the requests is enough."""

_STUB_TTFT_MS, _STUB_ITL_MS = 200, 20
_TOKENIZER = Path(__file__).parents[1] / "service" / "quickstart" / "model"

Figures = Mapping[str, float]
"""Value of each of `FIGURES`."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `num_clients`, or requests at a constant rate. Lengths in tokens."""

    num_clients: int = 4
    request_rate: float | None = None
    num_requests: int = 100
    prompt_len: int = 64
    output_len: int = 64

    def requests(self) -> tuple[TraceRequest, ...]:
        """The requests that both generators send."""
        drawn = draw(fixed(self.prompt_len, self.output_len), self.num_requests, seed=0)
        if self.request_rate is None:
            return tuple(drawn)
        due = ConstantArrivals(self.request_rate).arrival_times(self.num_requests, random_stream(0, "arrivals"))
        return tuple(with_arrivals(drawn, due.tolist()))


def ours(base_url: str, load: Load) -> Figures:
    """Measured by our generator, with one process. Raises RuntimeError if a request failed."""
    options = BodyOptions(fetch_server_facts(base_url, {}).model_id, endpoint_type="openai-chat")
    closed = load.request_rate is None
    plan = LoadPlan(
        base_url, load.requests(), options, closed_loop=closed, max_concurrency=load.num_clients if closed else 0
    )
    result = summarize(run_load(plan), RunLabels("openai-chat", "headrace", options.model))
    if result["failed"] or result["num_other_length"]:
        raise RuntimeError(f"{result['failed']} requests failed, {result['num_other_length']} had another length")
    values = (result[key] for key in ("request_throughput", "output_throughput", "median_ttft_ms", "median_itl_ms"))
    return dict(zip(FIGURES, values, strict=True))


def guidellms(program: str, base_url: str, load: Load) -> Figures:
    """Measured by guidellm. Raises RuntimeError if the program or a request failed."""
    with tempfile.TemporaryDirectory() as folder:
        report, prompts = Path(folder) / "report.json", Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(f"{json.dumps(row)}\n" for row in prompt_rows(load)), encoding="utf-8")
        arrivals = f"kind=concurrent,streams={load.num_clients}"
        if load.request_rate is not None:
            arrivals = f"kind=constant,rate={load.request_rate}"
        command = [
            program,
            "run",
            f"--backend=kind=openai_http,target={base_url},model={fetch_server_facts(base_url, {}).model_id}",
            f"--profile={arrivals}",
            f"--constraint=kind=max_requests,count={load.num_requests}",
            f"--tokenizer=kind=huggingface_auto,model={_TOKENIZER}",
            f"--data=kind=json_file,path={prompts}",
            f"--output=kind=json,path={report}",
            "--disable-console",
        ]
        environment = {**os.environ, "HF_HOME": folder}  # guidellm keeps a copy of the prompts there
        finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if finished.returncode or not report.exists():
            raise RuntimeError(f"guidellm ended with code {finished.returncode}: {finished.stderr[-500:]}")
        return read_report(json.loads(report.read_text(encoding="utf-8")), load)


def prompt_rows(load: Load) -> list[dict[str, Any]]:
    """Our prompts as rows, with the column names that guidellm expects."""
    options = BodyOptions("any", endpoint_type="openai-chat")
    bodies = [json.loads(request_body(request, options)) for request in load.requests()]
    return [{"prompt": body["messages"][0]["content"], "output_tokens_count": body["max_tokens"]} for body in bodies]


def read_report(report: Mapping[str, Any], load: Load) -> Figures:
    """The figures of guidellm's JSON report (its first benchmark). Raises RuntimeError if requests are missing."""
    benchmark = report["benchmarks"][0]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    if totals["errored"] or totals["successful"] < _COMPLETE * load.num_requests:
        raise RuntimeError(f"guidellm of {load.num_requests} requests: {totals}")
    return dict(
        zip(
            FIGURES,
            (
                metrics["requests_per_second"]["successful"]["mean"],
                metrics["output_tokens_per_second"]["successful"]["mean"],
                metrics["time_to_first_token_ms"]["successful"]["median"],
                metrics["inter_token_latency_ms"]["successful"]["median"],
            ),
            strict=True,
        )
    )


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return {name: median(one[name] for one in rounds) for name in FIGURES}


def differences(our_figures: Figures, their_figures: Figures) -> dict[str, float]:
    """(ours - theirs) / theirs, for each figure."""
    return {name: (our_figures[name] - their_figures[name]) / their_figures[name] for name in FIGURES}


def one_round(base_url: str, program: str, loads: tuple[Load, Load], ours_first: bool) -> tuple[Figures, Figures]:
    """(ours, guidellm's): throughputs under the first load, latencies under the second."""
    pairs = []
    for load in loads:
        if ours_first:
            pairs.append((ours(base_url, load), guidellms(program, base_url, load)))
        else:
            theirs = guidellms(program, base_url, load)
            pairs.append((ours(base_url, load), theirs))
    closed, paced = pairs
    our_figures, their_figures = (
        {name: (closed if name in THROUGHPUTS else paced)[side][name] for name in FIGURES} for side in (0, 1)
    )
    return our_figures, their_figures


@contextmanager
def _server(base_url: str | None, stub: bool, step_ms: float | None) -> Iterator[str]:
    if base_url:
        yield base_url
        return
    if stub:
        with running_stub("--ttft-ms", str(_STUB_TTFT_MS), "--itl-ms", str(_STUB_ITL_MS)) as url:
            yield url
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = ["service", "serve"] if step_ms is None else ["loadtest.host_server", "--step-ms", str(step_ms), "--"]
    with running_server([sys.executable, "-m", *program, "--port", str(port)], f"{url}/ready"):
        yield url


def _round_line(number: int, num_rounds: int, our_figures: Figures, their_figures: Figures) -> str:
    pairs = (f"{name} {our_figures[name]:.4g} ({their_figures[name]:.4g})" for name in FIGURES)
    return f"round {number} of {num_rounds}, in brackets guidellm: {'; '.join(pairs)}"


def main() -> int:
    """Print the table and one line of JSON. The exit code is 1 if throughput or TTFT disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", default="guidellm", help="the program")
    parser.add_argument("--base-url", help="use this running server instead of starting one")
    parser.add_argument("--stub", action="store_true", help=f"a stub: TTFT {_STUB_TTFT_MS} ms, ITL {_STUB_ITL_MS} ms")
    parser.add_argument("--step-ms", type=float, help="the service over a simulated device; milliseconds per iteration")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2.0, help="requests/s of the latency measurement; default: 2")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--output-len", type=int, default=64)
    args = parser.parse_args()
    load = Load(args.clients, None, args.requests, output_len=args.output_len)
    loads = load, dataclasses.replace(load, request_rate=args.rate)
    rounds: list[tuple[Figures, Figures]] = []
    with _server(args.base_url, args.stub, args.step_ms) as base_url:
        for number in range(args.rounds):
            rounds.append(one_round(base_url, args.guidellm, loads, ours_first=number % 2 == 0))
            print(_round_line(number + 1, args.rounds, *rounds[-1]), file=sys.stderr, flush=True)
    our_figures, their_figures = medians([pair[0] for pair in rounds]), medians([pair[1] for pair in rounds])
    apart = differences(our_figures, their_figures)
    print(f"{'':20}{'ours':>10}{'guidellm':>10}{'apart':>8}")
    for name in FIGURES:
        print(f"{name:20}{our_figures[name]:>10.4g}{their_figures[name]:>10.4g}{apart[name]:>+8.1%}")
    agree = all(abs(apart[name]) <= AGREEMENT for name in FIGURES[:3])
    print(json.dumps({"ours": our_figures, "guidellm": their_figures, "apart": apart, "agree": agree}))
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
