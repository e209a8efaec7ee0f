"""Options of the load generator's `run` and `trace`, and the arrival process that they select."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_run_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", default="http://127.0.0.1:8000", help="default: http://127.0.0.1:8000")
    server.add_argument(
        "--endpoint-type",
        choices=("openai", "openai-chat"),
        default="openai",
        help="openai (default): /v1/completions; openai-chat: /v1/chat/completions",
    )
    server.add_argument("--backend", default="openai", help="kind of server, a label in the result; default: openai")
    server.add_argument("--label", help="name of this run, a label in the result")
    server.add_argument("--model", help="model name; default: the first that the server lists")
    server.add_argument("--tokenizer", help="name of the tokenizer, a label in the result")
    server.add_argument(
        "--vocab-size", type=_at_least(1), help="prompt token ids are below this; default: the server's vocabulary"
    )
    server.add_argument("--min-token-id", type=_at_least(0), default=3, help="lowest prompt token id; default: 3")
    server.add_argument(
        "--extra-body", type=_json_object, default={}, help="JSON merged into each body; null removes a field"
    )
    server.add_argument("--no-ignore-eos", action="store_true", help="let answers end at an end-of-sequence token")
    share = "share of requests, evenly spread, that ask to be deterministic; default: 0"
    server.add_argument("--deterministic-share", type=float, default=0.0, metavar="SHARE", help=share)
    server.add_argument("--return-token-ids", action="store_true", help="ask the server for token ids in each chunk")
    server.add_argument("--timeout", type=_seconds, default=600.0, help="limit per request in seconds; default: 600")
    server.add_argument(
        "--warmup", type=_at_least(0), default=1, help="requests sent before the run, not counted; default: 1"
    )
    _add_workload_options(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--max-concurrency", type=_at_least(1), help="limit of requests in flight; without a rate: closed-loop clients"
    )
    load.add_argument("--processes", type=_at_least(1), help="client processes; default: half of the cores")
    result = parser.add_argument_group("result")
    result.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS", help="objectives, such as ttft:200 tpot:50 e2el:5000"
    )
    result.add_argument("--metric-percentiles", type=_percentiles, default="50,90,95,99", help="default: 50,90,95,99")
    result.add_argument("--save", type=Path, metavar="FILE", help="write the full result as JSON")


def _add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload and arrivals")
    group.add_argument("--workload", default="orca", help="see `loadtest workloads`; default: orca")
    group.add_argument("--trace", type=Path, help="replay this .jsonl, .csv or ShareGPT .json instead")
    group.add_argument("--trace-speed", type=float, default=1.0, help="2 replays the trace twice as fast; default: 1")
    group.add_argument(
        "--num-prompts",
        "--num",
        type=_at_least(1),
        dest="num_prompts",
        help="number of requests; default: the workload's, or the whole trace",
    )
    group.add_argument("--seed", type=_at_least(0), default=0, help="seed of lengths, prompts and arrivals; default: 0")
    group.add_argument("--request-rate", type=float, default=math.inf, help="requests/s; default inf: all at once")
    group.add_argument("--burstiness", type=float, default=1.0, help="gamma shape of the gaps; 1 is Poisson")
    group.add_argument(
        "--arrival",
        choices=("poisson", "gamma", "constant", "at-once", "closed", "trace"),
        help="arrival process; default: implied by the other options",
    )


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    _add_workload_options(parser)
    parser.add_argument("--vocab-size", type=_at_least(1), help="also write the prompts, with token ids below this")
    parser.add_argument("--min-token-id", type=_at_least(0), default=3, help="lowest prompt token id; default: 3")
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(max_concurrency=None)  # arrival_name reads it; a trace has no such limit


def arrival_name(args: argparse.Namespace) -> str:
    """The arrival process: the one asked for, else the one implied by rate, burstiness, concurrency and trace.

    Raises ValueError for options that this process would ignore.
    """
    arrival = args.arrival or _implied_arrival(args)
    if args.burstiness != 1.0 and arrival != "gamma":
        raise ValueError(f"--burstiness has no meaning for {arrival} arrivals")
    if math.isfinite(args.request_rate) and arrival in ("at-once", "closed", "trace"):
        raise ValueError(f"--request-rate has no meaning for {arrival} arrivals")
    if arrival == "trace" and not args.trace:
        raise ValueError("--arrival trace needs --trace FILE")
    if args.trace_speed != 1.0 and arrival != "trace":
        raise ValueError(f"--trace-speed has no meaning for {arrival} arrivals")
    return str(arrival)


def _implied_arrival(args: argparse.Namespace) -> str:
    if math.isfinite(args.request_rate):
        return "poisson" if args.burstiness == 1.0 else "gamma"
    if args.max_concurrency:
        return "closed"
    return "trace" if args.trace else "at-once"


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.strip().lstrip("+-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"want a whole number of at least {least}, not {text!r}")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"want seconds above 0, not {text!r}")
    return seconds


def _percentiles(text: str) -> list[float]:
    try:
        percentiles = [float(part) for part in text.split(",")]
    except ValueError:
        percentiles = [math.nan]
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise argparse.ArgumentTypeError(f"want numbers from 0 to 100 with commas between, not {text!r}")
    return percentiles


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"want a JSON object, not {text!r}")
    return value
